"""One rate, kept by several frontends together."""

import pytest

from fermata.deployments.frontend.access.rate_limit import RateLimit
from fermata.deployments.frontend.access.tenants import Tenants
from fermata.deployments.specs.frontend import TenantSpec
from fermata.foundation.units import ms, seconds
from fermata.router.live.clients.tenant_shares import TenantShares

FRONTENDS = (1, 2, 3, 4)


def test_whoever_asks_at_one_frontend_gets_nearly_everything_there() -> None:
    shares = TenantShares()
    shares.on_asked(1, {"a": 200})
    assert shares.of(1, FRONTENDS) == {"a": pytest.approx(1.01 / 1.04)}
    assert shares.of(2, FRONTENDS) == {"a": pytest.approx(0.01 / 1.04)}


def test_parts_are_as_what_was_asked_and_make_one_whole() -> None:
    shares = TenantShares()
    for frontend, count in ((1, 60), (2, 30), (3, 10)):
        shares.on_asked(frontend, {"a": count, "b": 7})
    parts = [shares.of(each, FRONTENDS)["a"] for each in FRONTENDS]
    assert sum(parts) == pytest.approx(1.0)
    assert parts == pytest.approx([0.61 / 1.04, 0.31 / 1.04, 0.11 / 1.04, 0.01 / 1.04])
    # One that is gone leaves its part to the others.
    shares.on_gone(1)
    assert shares.of(2, (2, 3))["a"] == pytest.approx(0.7525, abs=0.01)


def test_who_moves_is_followed_and_who_falls_silent_is_forgotten() -> None:
    shares = TenantShares()
    for _ in range(5):
        shares.on_asked(1, {"a": 100})
        shares.on_asked(2, {})
    for _ in range(3):
        shares.on_asked(1, {})
        shares.on_asked(2, {"a": 100})
    assert shares.of(2, (1, 2))["a"] > 0.85
    for _ in range(30):
        shares.on_asked(2, {})
        shares.on_asked(1, {})
    assert shares.of(1, (1, 2)) == {}


def test_a_part_of_a_rate_has_a_part_of_the_burst_and_at_least_one() -> None:
    limit = RateLimit(rate_rps=100, burst=8)
    limit.set_share(0.5)
    assert [limit.take(0) for _ in range(5)] == [0, 0, 0, 0, ms(20)]
    limit.set_share(0.01)
    assert limit.take(seconds(10)) == 0
    assert limit.take(seconds(10)) == seconds(1)
    limit.set_share(1.0)
    assert [limit.take(seconds(60)) for _ in range(9)].count(0) == 8


def spec() -> TenantSpec:
    return TenantSpec("a", ("t" * 16,), rate_rps=40, burst=4)


def test_frontends_share_evenly_until_they_know_better() -> None:
    known = Tenants((spec(), TenantSpec("free", ("f" * 16,))))
    limit = known.find("Bearer " + "t" * 16).limit
    assert limit is not None
    gaps = [limit.gap_ns]
    known.set_frontends(4)
    gaps.append(limit.gap_ns)
    known.set_shares({"a": 0.5})
    gaps.append(limit.gap_ns)
    known.set_frontends(3)
    gaps.append(limit.gap_ns)
    # Alone again, whatever was said before.
    known.set_frontends(1)
    gaps.append(limit.gap_ns)
    assert gaps == [ms(25), ms(100), ms(50), ms(50), ms(25)]


@pytest.mark.parametrize("spread", [(1, 0, 0, 0), (1, 1, 1, 1), (5, 3, 1, 0)])
def test_a_tenant_gets_its_rate_once_however_it_spreads(spread: tuple[int, ...]) -> None:
    """Ten times its rate for half a minute, over four frontends that tell the router every second;
    no matter where it comes in, it gets its rate and no more."""
    shares = TenantShares()
    frontends = [Tenants((spec(),)) for _ in FRONTENDS]
    limits = [each.find("Bearer " + "t" * 16) for each in frontends]
    for each in frontends:
        each.set_frontends(len(FRONTENDS))
    passed = 0
    for second in range(30):
        asked = [0] * len(FRONTENDS)
        for step in range(400):
            # The same pattern again and again, in proportion to the weights.
            place = next(
                number
                for number in range(len(spread))
                if step % sum(spread) < sum(spread[: number + 1])
            )
            asked[place] += 1
            now_ns = seconds(second) + step * ms(2.5)
            if limits[place].admit(now_ns) is None and second >= 10:
                passed += 1
        for number, count in zip(FRONTENDS, asked, strict=True):
            shares.on_asked(number, {"a": count} if count else {})
            frontends[number - 1].set_shares(shares.of(number, FRONTENDS))
    assert 0.95 * 40 * 20 <= passed <= 1.05 * 40 * 20
