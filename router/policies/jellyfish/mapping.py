"""Client-DNN mapping (Jellyfish Algorithm 1): an exact dynamic programme over sets of sums."""

from collections.abc import Sequence

from fermata.router.policies.jellyfish.problem import Client, MappingPlan, Share, Zoo, make_share


def find_optimal_clients(zoo: Zoo, dnn: int, clients: Sequence[Client]) -> list[Client]:
    """FindOptimalClients: those with the highest total rate that one worker with this DNN can
    serve. The programme's matrix is one integer a row, whose bit s says that sum s is reachable."""
    capacity = zoo.capacity[dnn]
    willing = [client for client in clients if client.batch_max[dnn] > 0]
    # By descending budget, so that the last client of a subset is the one that bounds its batch.
    willing.sort(key=lambda client: -client.batch_max[dnn])
    rows = [1]
    for client in willing:
        room = (2 << capacity[client.batch_max[dnn]]) - 1
        reached = rows[-1]
        rows.append(reached | ((reached << client.load) & room))
    return _trace_back(rows, willing)


def _trace_back(rows: Sequence[int], clients: Sequence[Client]) -> list[Client]:
    """A subset with the largest reachable sum; a client is in it where leaving it out would
    not reach the sum."""
    total = rows[-1].bit_length() - 1
    chosen: list[Client] = []
    for index in range(len(clients) - 1, -1, -1):
        if not rows[index] >> total & 1:
            chosen.append(clients[index])
            total -= clients[index].load
    return chosen


def map_clients(zoo: Zoo, clients: Sequence[Client], dnns: Sequence[int]) -> MappingPlan:
    """MapClients: the most accurate DNN takes the highest rate it can, then the next."""
    remaining = list(clients)
    order = sorted(range(len(dnns)), key=lambda worker: -dnns[worker])
    shares: list[Share | None] = [None] * len(dnns)
    for worker in order:
        chosen = find_optimal_clients(zoo, dnns[worker], remaining) if remaining else []
        shares[worker] = make_share(zoo, dnns[worker], chosen)
        taken = {client.number for client in chosen}
        remaining = [client for client in remaining if client.number not in taken]
    return MappingPlan(tuple(share for share in shares if share is not None), tuple(remaining))
