"""Who gets a place at an endpoint: turns before judgements, and these by their roles' ranks."""

from __future__ import annotations

import asyncio

import pytest

from ibrl_jax.endpoints.lane import RANK, Places


async def served(ranks: list[int], number: int) -> list[int]:
    """The order in which tasks, asking one after another, get one of so many places."""
    places, order = Places(number), []

    async def ask(name: int, rank: int) -> None:
        RANK.set(rank)
        async with places:
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(*(ask(name, rank) for name, rank in enumerate(ranks)))
    return order


@pytest.mark.parametrize("number", [1, 2])
def test_places_go_by_rank_and_within_one_in_turn(number: int) -> None:
    order = asyncio.run(served([2, 2, 1, 0, 2, 1, 0], number))
    assert order[:number] == [0, 1][:number]  # nobody waited yet
    waiting = [name for name in (3, 6, 2, 5, 0, 1, 4) if name >= number]
    assert order[number:] == waiting


def test_a_rank_is_one_tasks_alone() -> None:
    asyncio.run(served([5, 5], 1))
    assert RANK.get() == 0


def test_no_more_than_the_number_are_in_at_once_and_all_come_out() -> None:
    async def many() -> tuple[int, int]:
        places, inside, most = Places(3), 0, 0

        async def ask() -> None:
            nonlocal inside, most
            async with places:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(ask() for _ in range(20)))
        return most, places._free

    assert asyncio.run(many()) == (3, 3)


def test_a_place_that_came_to_one_who_was_cancelled_goes_on_to_the_next() -> None:
    async def cancelled() -> bool:
        places = Places(1)
        await places.__aenter__()
        first, second = (asyncio.create_task(places.__aenter__()) for _ in range(2))
        await asyncio.sleep(0)
        await places.__aexit__()  # given to the first ...
        first.cancel()  # ... who no longer wants it
        await asyncio.wait_for(second, 1)
        assert first.cancelled()
        await places.__aexit__()
        return places._free == 1

    assert asyncio.run(cancelled())


def test_one_who_gives_up_waiting_is_passed_over() -> None:
    async def passed() -> bool:
        places = Places(1)
        await places.__aenter__()
        first, second = (asyncio.create_task(places.__aenter__()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        await places.__aexit__()
        await asyncio.wait_for(second, 1)
        return places._free == 0

    assert asyncio.run(passed())
