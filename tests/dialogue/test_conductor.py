"""The gathering engine: batches form when nobody can go on, and only then."""

import asyncio
from collections.abc import Sequence

import pytest

from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.sampler.types import Completion, Request
from tests.dialogue.fakes import InLine


class FakeEngine(InLine):
    """Answers each request with its first id plus one, and remembers the batches."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
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
                        await conductor.elsewhere(asyncio.sleep(0.1))

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


def test_what_a_cancelled_dialogue_asked_is_not_run() -> None:
    """Its slot is free by then, and perhaps another's."""
    engine = FakeEngine()

    async def main() -> None:
        conductor = Conductor()

        async def dialogue(number: int) -> None:
            with conductor.dialogue():
                await conductor.sample(engine, request(number))

        async def late() -> None:
            with conductor.dialogue():
                await asyncio.sleep(0.01)  # holds the batch back
                await conductor.sample(engine, request(9))

        tasks = [asyncio.create_task(c) for c in (dialogue(0), dialogue(1), late())]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        conductor.close()

    asyncio.run(asyncio.wait_for(main(), 5))
    assert sorted(number for batch in engine.batches for number in batch) == [1, 9]


def test_those_who_ask_during_a_run_are_heard_when_its_askers_are_gone() -> None:
    import threading

    started, go_on = threading.Event(), threading.Event()

    class Held(FakeEngine):
        def run(self, requests: Sequence[Request]) -> list[Completion]:
            if requests[0].ids == [0]:
                started.set()
                assert go_on.wait(5)
            return super().run(requests)

    engine = Held()

    async def main() -> None:
        conductor = Conductor()
        away = asyncio.Event()

        async def first() -> None:
            with conductor.dialogue():
                await conductor.sample(engine, request(0))

        async def second() -> None:
            with conductor.dialogue():
                await conductor.elsewhere(away.wait())
                await conductor.sample(engine, request(1))

        tasks = [asyncio.create_task(first()), asyncio.create_task(second())]
        while not started.is_set():
            await asyncio.sleep(0.001)
        away.set()  # the second asks while the first one's batch is under way
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        go_on.set()
        await tasks[1]
        conductor.close()

    asyncio.run(asyncio.wait_for(main(), 5))
    assert engine.batches == [[0], [1]]


class Blocks(InLine):
    """Works on every request for `max_new` steps, two requests at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []
        self._left: dict[int, int] = {}

    def step(self) -> list[tuple[int, Completion]]:
        taken = self._line[:2]
        self.batches.append([request.slot for _, request in taken])
        done = []
        for ticket, request in taken:
            self._left[ticket] = self._left.get(ticket, request.max_new) - 1
            if not self._left[ticket]:
                done.append((ticket, Completion([request.ids[0]], [0.0], "stop")))
        over = {ticket for ticket, _ in done}
        self._line = [(t, r) for t, r in self._line if t not in over]
        return done


def in_turns(lengths: list[list[int]], hurries: bool = False) -> list[list[list[int]]]:
    """Dialogues that speak to two engines in turns; a turn's length is its steps. The batches."""
    import time

    class Hasty(Blocks):
        def step(self) -> list[tuple[int, Completion]]:
            time.sleep(0.0 if hurries else 0.003)
            return super().step()

    engines = [Hasty(), Blocks()]

    async def main() -> None:
        conductor = Conductor()

        async def dialogue(number: int) -> None:
            with conductor.dialogue():
                for turn, steps in enumerate(lengths[number]):
                    asked = Request("live", number, [number], (0, 0), 1.0, steps)
                    await conductor.sample(engines[turn % 2], asked)

        await asyncio.gather(*(dialogue(n) for n in range(len(lengths))))
        conductor.close()

    asyncio.run(asyncio.wait_for(main(), 5))
    return [engine.batches for engine in engines]


def test_both_engines_work_once_dialogues_are_out_of_step() -> None:
    first, second = in_turns([[1, 1, 1], [1, 1, 1], [1, 1], [1, 1]])
    assert first == [[0, 1], [2, 3], [0, 1]]  # a step takes two, so the others come after
    assert second == [[0, 1], [2, 3]]  # in the ticks 2 and 3


def test_a_short_turn_does_not_wait_for_a_long_one() -> None:
    first, second = in_turns([[3, 1], [1, 1, 1]])
    assert first == [[0, 1], [0], [0, 1]]  # dialogue 1 is back while 0 still has its first turn
    assert second == [[1], [0]]


def test_what_runs_together_does_not_depend_on_the_clock() -> None:
    lengths = [[1 + (3 * n + t) % 4 for t in range(5)] for n in range(5)]
    assert in_turns(lengths, hurries=True) == in_turns(lengths)
