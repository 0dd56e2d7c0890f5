"""How early batches are sent: learnt, bounded, and forgotten."""

from fermata.foundation.units import ms
from fermata.router.live.lead_time import LeadTimeEstimator, QuantileWindow


def test_lead_is_bounded_and_takes_timer_lateness_in() -> None:
    lead = LeadTimeEstimator(ms(1), ms(20))
    assert lead.lead_ns() == ms(1)
    lead.on_timer(ms(2))
    assert lead.lead_ns() == ms(3)
    lead.on_batch(ms(500), None)
    assert lead.lead_ns() == ms(20)


def test_quantiles_forget() -> None:
    window = QuantileWindow(size=2)
    for value in (9, 1, 2):
        window.add(value)
    assert (window.quantile(0.0), window.quantile(1.0)) == (1, 2)
