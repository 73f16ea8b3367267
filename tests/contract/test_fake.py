"""The fake keeps the contract that the real backends keep."""

from __future__ import annotations

import pytest

from devtools.fake_backend import FakeBackend
from mcagent.model.dataplane.backend import Backend
from mcagent.model.plan import Op
from tests.contract.inside import adds, as_mapping, make
from tests.contract.ovs_values import BRIDGE, tunnel
from tests.contract.suite import BackendContract, Case

pytestmark = pytest.mark.contract


class TestFake(BackendContract):
    """The contract, with faults that are asked for."""

    @pytest.fixture
    def case(self) -> Case:
        fake = FakeBackend(Backend.OVSDB)
        fake.refuse(tunnel(99).key, "no such device")
        names: list[str] = []
        return Case(
            backend=fake,
            base=(BRIDGE,),
            pool=(tunnel(2), tunnel(3), tunnel(4), tunnel(3, peer="other")),
            refused=tunnel(99),
            add_foreign=lambda: names.append("theirs"),
            foreign=lambda: list(names),
            break_facility=fake.unreachable,
        )


def test_the_fake_counts_what_is_done_and_not_what_fails() -> None:
    """A test of the loop can say how much was done."""
    fake = FakeBackend(Backend.OVSDB)
    fake.refuse(tunnel(2).key)
    fake.apply(adds(BRIDGE, tunnel(2), tunnel(3)))
    assert fake.operations == {Op.ADD: 2}
    assert [step.key for step in fake.applied] == [BRIDGE.key, tunnel(3).key]


def test_who_watches_the_fake_hears_of_others_changes_only() -> None:
    """`apply` wakes nobody; a disturbance, an outage and its end do."""
    fake, heard = FakeBackend(Backend.OVSDB), []
    fake.watch(lambda: heard.append("changed"))
    make(fake, [BRIDGE])
    assert heard == []
    fake.disturb(BRIDGE.key, None)
    fake.unreachable()
    fake.heal()
    assert heard == ["changed"] * 3
    assert fake.observe() == as_mapping([])
