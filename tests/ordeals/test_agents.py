"""Agents in crowds, aborted at any moment and killed, at length; the soak does even more."""

import random
from pathlib import Path

import pytest
from tests.support.agent_program import kill_agents, opened_program
from tests.support.ordeals import abort_at_events, abort_at_moments, check_crowd, ordeal

pytestmark = pytest.mark.anyio


async def test_a_hundred_sessions_at_once_lose_double_and_mix_up_nothing(tmp_path: Path) -> None:
    await check_crowd(tmp_path, 100)


@pytest.mark.covers("AL-84")
async def test_many_aborts_at_any_event_end_each_run_once(tmp_path: Path) -> None:
    async with ordeal(tmp_path) as found:
        await abort_at_events(found, 100)
        assert all(run.ended.is_set() for run in found.agent.runtime.runs())


@pytest.mark.covers("AL-84")
@pytest.mark.parametrize("code_mode", [True, False])
async def test_many_aborts_at_any_moment_end_each_run_once(tmp_path: Path, code_mode: bool) -> None:
    async with ordeal(tmp_path, code_mode) as found:
        await abort_at_moments(found, 100)
        assert all(run.ended.is_set() for run in found.agent.runtime.runs())


@pytest.mark.covers("AL-85")
async def test_agents_that_are_killed_again_and_again_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    async with opened_program() as program:
        found = await kill_agents(program, tmp_path, 20, random.randrange(1 << 30))
    assert found.kills == 20
