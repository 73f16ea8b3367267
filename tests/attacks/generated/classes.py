"""The classes of attacks that are generated."""

from __future__ import annotations

from tests.attacks.generated.browsers import A12
from tests.attacks.generated.claims import A1, A14
from tests.attacks.generated.connections import A6, A7, FLOODS, N6
from tests.attacks.generated.exporters import N5
from tests.attacks.generated.objects import A8, A10, A11
from tests.attacks.generated.outside import A5, A9
from tests.attacks.generated.planted import A13
from tests.attacks.generated.pods import A15
from tests.attacks.generated.search import AttackClass
from tests.attacks.generated.tunnels import A2, A3, A16, N1, SOURCES

CLASSES: tuple[AttackClass, ...] = (
    A1,
    A2,
    A3,
    A5,
    A6,
    A7,
    A8,
    A9,
    A10,
    A11,
    A12,
    A13,
    A14,
    A15,
    A16,
    N1,
    N5,
    N6,
    FLOODS,
    SOURCES,
)
