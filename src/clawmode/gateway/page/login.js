// The login: by the one-time code in the fragment of the address, or by a token.

const message = document.getElementById("message");
const form = document.getElementById("form");
const hint = document.getElementById("hint");
const field = document.getElementById("token");
const consent = document.getElementById("consent");
const agree = document.getElementById("agree");
const stay = document.getElementById("stay");

// A click that was meant for the page before must not agree.
const SETTLE_MS = 600;

// The part after "#" is a one-time code, or the view to return to.
const fragment = location.hash;
const code = new URLSearchParams(fragment.slice(1)).get("code");
const view = fragment.startsWith("#/") ? fragment : "";
const reason = new URLSearchParams(location.search).get("reason");

const REASONS = {
  ended: "The session has ended. Please log in again.",
  out: "You are logged out.",
};

async function post(body) {
  const response = await fetch("/login", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) {
    throw new Error(answer.error.message);
  }
  return answer;
}

function enter() {
  location.replace("/" + view);
}

function ask(text) {
  message.textContent = text;
  form.hidden = false;
  hint.hidden = false;
  field.focus();
}

async function attempt(body, failed) {
  message.textContent = "Logging in …";
  let answer;
  try {
    answer = await post(body);
  } catch (error) {
    ask(`${failed}: ${error.message}.`);
    return;
  }
  if (answer.ask) confirm(body, answer.ask, failed);
  else enter();
}

// The link may come from a stranger, who wants this browser to act under the stranger's name.
function confirm(body, { principal, scopes, current }, failed) {
  const now = current === null ? "" : ` You are logged in as “${current}”.`;
  message.textContent =
    `This link logs this browser in as “${principal}” (${scopes.join(", ")}).${now}` +
    " Continue only if you have made the link yourself.";
  agree.textContent = `Log in as “${principal}”`;
  stay.textContent = current === null ? "Do not log in" : `Stay “${current}”`;
  consent.hidden = false;
  agree.disabled = true;
  setTimeout(() => (agree.disabled = false), SETTLE_MS);
  agree.onclick = () => {
    consent.hidden = true;
    attempt({ ...body, confirmed: true }, failed);
  };
  stay.onclick = () => {
    consent.hidden = true;
    if (current === null) ask("");
    else enter();
  };
  stay.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const token = field.value.trim();
  field.value = "";
  attempt({ token }, "The token was not accepted");
});

if (code) {
  // The code must not stay in the history, nor in the address that people copy.
  history.replaceState(null, "", "/login");
  attempt({ code }, "The link was not accepted");
} else {
  // A link from another site brings no cookie along: the browser may be logged in already.
  // A POST, because browsers send `Origin` with it, which says whether they use TLS.
  fetch("/session", { method: "POST" })
    .then((response) => response.json())
    .then(({ principal }) => (principal ? enter() : ask(REASONS[reason] || "")))
    .catch(() => ask("The gateway does not answer."));
}
