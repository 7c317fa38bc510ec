"""The gathering engine: batches form when nobody can go on, and only then."""

import asyncio
from collections.abc import Sequence

import pytest

from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.sampler.engine import Completion, Request


class FakeEngine:
    """Answers each request with its first id plus one, and remembers the batches."""

    def __init__(self, fails: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.fails = fails

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        self.batches.append([r.ids[0] for r in requests])
        if self.fails:
            raise RuntimeError("the device is gone")
        return [Completion([r.ids[0] + 1], [0.0], "stop") for r in requests]


def request(number: int) -> Request:
    return Request("live", number, [number], (0, 0), 1.0, 1)


def talk(dialogues: int, turns: int, slow: frozenset[int] = frozenset()) -> FakeEngine:
    engine = FakeEngine()

    async def main() -> None:
        conductor = Conductor()

        async def dialogue(number: int) -> None:
            with conductor.dialogue():
                for _ in range(turns):
                    answer = await conductor.sample(engine, request(number))
                    assert answer.ids == [number + 1]
                    if number in slow:
                        await conductor.elsewhere(asyncio.sleep(0.02))

        await asyncio.gather(*(dialogue(n) for n in range(dialogues)))
        conductor.close()

    asyncio.run(main())
    return engine


def test_local_dialogues_go_in_lock_step() -> None:
    assert talk(5, 3).batches == [[0, 1, 2, 3, 4]] * 3


def test_nobody_waits_for_an_endpoint() -> None:
    batches = talk(3, 4, slow=frozenset({2})).batches
    assert batches[0] == [0, 1, 2]
    assert batches[1:4] == [[0, 1]] * 3  # the others go on while one waits elsewhere
    assert batches[4:] == [[2]] * 3


def test_an_engine_that_fails_fails_every_dialogue_and_hangs_none() -> None:
    engine = FakeEngine(fails=True)

    async def main() -> list[BaseException | None]:
        conductor = Conductor()

        async def dialogue(number: int) -> None:
            with conductor.dialogue():
                await conductor.sample(engine, request(number))

        done = await asyncio.gather(*(dialogue(n) for n in range(3)), return_exceptions=True)
        conductor.close()
        return done

    done = asyncio.run(asyncio.wait_for(main(), 5))
    assert [str(e) for e in done] == ["the device is gone"] * 3


def test_a_cancelled_dialogue_does_not_stop_the_rest() -> None:
    engine = FakeEngine()

    async def main() -> None:
        conductor = Conductor()
        finished: list[int] = []

        async def dialogue(number: int) -> None:
            with conductor.dialogue():
                for _ in range(3):
                    await conductor.sample(engine, request(number))
                finished.append(number)

        tasks = [asyncio.create_task(dialogue(n)) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(finished) == [0, 2]
        conductor.close()

    asyncio.run(asyncio.wait_for(main(), 5))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_answers_come_in_the_order_of_asking_whichever_engine_is_faster(order) -> None:
    import time

    class Slow(FakeEngine):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.seconds = seconds

        def run(self, requests: Sequence[Request]) -> list[Completion]:
            time.sleep(self.seconds)
            return super().run(requests)

    engines = [Slow(0.02 * order[0]), Slow(0.02 * order[1])]
    seen: list[int] = []

    async def main() -> None:
        conductor = Conductor()

        async def dialogue(number: int) -> None:
            with conductor.dialogue():
                await conductor.sample(engines[number % 2], request(number))
                seen.append(number)

        await asyncio.gather(*(dialogue(n) for n in range(4)))
        conductor.close()

    asyncio.run(main())
    assert seen == [0, 1, 2, 3]
