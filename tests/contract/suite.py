"""What every backend has to keep, as tests to inherit: subclass `BackendContract` and give it a `case`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.dataplane.base import DataplaneBackend
from mcagent.model.dataplane.resources import Resource
from mcagent.model.errors import BackendError
from tests.contract.inside import adds, as_mapping, make, steps_to
from tests.properties import COSTLY


@dataclass(kw_only=True)
class Case:
    """A backend with an empty world, and what to try on it.

    `base` is what everything else stands on. `pool` holds at least three resources that may exist without
    each other, and some of the same keys with other content. `refused` is one that the facility refuses.
    `foreign` returns a picture of what is not ours; `add_foreign` puts something there.
    """

    backend: DataplaneBackend
    base: tuple[Resource, ...]
    pool: tuple[Resource, ...]
    refused: Resource
    add_foreign: Callable[[], None]
    foreign: Callable[[], object]
    break_facility: Callable[[], None]

    def choose(self, indexes: Sequence[int]) -> list[Resource]:
        """Return base and the chosen resources of the pool, the last of each key."""
        return list(as_mapping([*self.base, *(self.pool[index] for index in indexes)]).values())

    @property
    def whole(self) -> list[Resource]:
        """All there is in the pool, the last of each key."""
        return self.choose(range(len(self.pool)))


class BackendContract:
    """The contract of `mcagent.dataplane.base`."""

    def test_nothing_of_ours_is_observed_at_first(self, case: Case) -> None:
        """An untouched facility holds nothing of ours."""
        assert case.backend.observe() == {}

    def test_what_was_applied_is_what_is_observed(self, case: Case) -> None:
        """The very values come back, so that nothing is left to do."""
        make(case.backend, case.whole)
        observed = case.backend.observe()
        assert observed == as_mapping(case.whole)
        assert steps_to(observed, case.whole) == []

    def test_steps_applied_twice_leave_the_same(self, case: Case) -> None:
        """A step whose outcome is there already is done, not an error: its first answer may have been lost."""
        steps = adds(*case.whole)
        case.backend.apply(steps)
        again = case.backend.apply(steps)
        assert not again.failed, [str(error) for _, error in again.failed]
        assert again.done == tuple(steps)
        assert case.backend.observe() == as_mapping(case.whole)

    def test_from_any_set_to_any_other(self, case: Case) -> None:
        """Whatever was there, the steps to something else lead to just that."""

        @COSTLY
        @given(st.lists(st.lists(st.sampled_from(range(len(case.pool)))), min_size=1, max_size=3))
        def walk(sets: list[list[int]]) -> None:
            for indexes in sets:
                resources = case.choose(indexes)
                make(case.backend, resources)
                assert case.backend.observe() == as_mapping(resources)

        walk()

    def test_everything_can_be_taken_away_again_and_foreign_things_stay(self, case: Case) -> None:
        """Adding, changing and removing all that is ours leaves what others put there as it was."""
        make(case.backend, case.base)
        case.add_foreign()
        before = case.foreign()
        assert before, "the test has to have something that is not ours"
        make(case.backend, case.whole)
        assert case.foreign() == before
        assert case.backend.observe() == as_mapping(case.whole)
        make(case.backend, case.base)
        assert case.foreign() == before
        assert case.backend.observe() == as_mapping(case.base)

    def test_nothing_of_ours_is_left_after_removing_all(self, case: Case) -> None:
        """Deleting every resource leads back to the start, and deleting it once more does no harm."""
        make(case.backend, case.whole)
        steps = steps_to(case.backend.observe(), [])
        assert case.backend.apply(steps).failed == ()
        assert case.backend.observe() == {}
        assert case.backend.apply(steps).failed == ()

    def test_a_refused_resource_fails_alone_and_by_name(self, case: Case) -> None:
        """What the facility refuses is reported with its step; everything else takes effect."""
        resources = [*case.whole[: len(case.base) + 1], case.refused, *case.whole[len(case.base) + 1 :]]
        result = case.backend.apply(adds(*resources))
        assert [step.key for step, _ in result.failed] == [case.refused.key]
        assert {step.key for step in result.done} == set(as_mapping(case.whole))
        error = result.failed[0][1]
        assert error.backend == case.backend.name
        assert error.reason
        observed = case.backend.observe()
        assert {key: observed.get(key) for key in as_mapping(case.whole)} == as_mapping(case.whole)
        assert observed.get(case.refused.key) != case.refused

    def test_a_facility_that_is_away_is_told_as_such(self, case: Case) -> None:
        """Both calls raise BackendError, which names the facility."""
        make(case.backend, case.base)
        case.break_facility()
        with pytest.raises(BackendError) as observing:
            case.backend.observe()
        with pytest.raises(BackendError) as applying:
            case.backend.apply(adds(*case.whole))
        assert observing.value.backend == applying.value.backend == case.backend.name
