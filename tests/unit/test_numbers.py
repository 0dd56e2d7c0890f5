"""Numbers of processes: each has one, and no two the same."""

from fermata.router.leadership.process_ids import claim_process_id


def test_a_process_keeps_its_number_and_shares_it_with_nobody() -> None:
    owners: dict[int, str] = {}
    names = [f"replica-{count}" for count in range(16)]

    def number(name: str) -> int:
        return claim_process_id(name, lambda number: owners.setdefault(number, name), bits=4)

    taken = [number(name) for name in names]
    # As many as there are: most of them found that of their digest taken.
    assert sorted(taken) == list(range(16))
    assert [number(name) for name in names] == taken
