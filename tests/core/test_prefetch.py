"""Results that are computed on threads before they are used: in order, few at a time, with the errors of each."""

import threading
import time
from collections.abc import Iterator

import pytest

from jitter.core.parallel.prefetch import map_ahead


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_results_are_in_the_order_of_the_items(ahead: int):
    def wait(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert list(map_ahead(wait, iter(range(12)), ahead)) == [item * item for item in range(12)]
    assert list(map_ahead(wait, [], ahead)) == []


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_few_items_are_under_way_at_a_time(ahead: int):
    taken, used, most = [], [], []

    def items() -> Iterator[int]:
        for item in range(20):
            taken.append(item)
            most.append(len(taken) - len(used))
            yield item

    for item in map_ahead(lambda item: item, items(), ahead):
        used.append(item)
    assert max(most) == ahead + 1


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_an_error_comes_after_the_results_before_it_and_ends_all(ahead: int):
    seen: list[int] = []

    def fail(item: int) -> int:
        if item == 4:
            raise KeyError(item)
        return item

    with pytest.raises(KeyError):
        seen.extend(map_ahead(fail, range(100), ahead))  # which keeps what came before the error
    assert seen == [0, 1, 2, 3]
    assert not any(thread.name.startswith("ahead") for thread in threading.enumerate())


def test_what_is_not_used_to_the_end_leaves_no_thread():
    for item in map_ahead(lambda item: item, range(10**9), 2):
        if item == 3:
            break
    assert not any(thread.name.startswith("ahead") for thread in threading.enumerate())


def test_with_one_ahead_the_function_runs_for_one_item_after_another():
    busy = threading.Lock()

    def alone(item: int) -> int:
        assert busy.acquire(blocking=False)
        time.sleep(0.001)
        busy.release()
        return item

    assert list(map_ahead(alone, range(20), 1)) == list(range(20))
