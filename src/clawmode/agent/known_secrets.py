"""What must not be seen in what is written about runs: the secrets that a setup knows."""

import os

from clawmode.command_setup import Setup
from clawmode.models.settings import KNOWN
from clawmode.variables import names_in

MIN_SECRET = 6


def known_secrets(setup: Setup) -> list[str]:
    """What must not be seen in what is written about runs."""
    configuration = setup.configuration
    providers = configuration.models.providers.values()
    profiles = configuration.auth.profiles.values()
    said = [provider.api_key or "" for provider in providers]
    said += [value for provider in providers for value in provider.headers.values()]
    said += [profile.key or "" for profile in profiles]
    said += [channel.secret or "" for channel in configuration.channels.values()]
    said.append(configuration.gateway.auth.token or "")
    sources = [*profiles, *(provider.auth for provider in providers if provider.auth)]
    names = [source.env for source in sources if source.env]
    names += [known.key.env for known in KNOWN.values() if known.key]
    names += [name for text in said for name in names_in(text)]
    found = [secret for server in setup.servers for secret in server.secrets]
    found += [*said, *(os.environ.get(name, "") for name in names)]
    return [it for it in dict.fromkeys(found) if len(it) >= MIN_SECRET and "${" not in it]
