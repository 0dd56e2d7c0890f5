"""Shape buckets: requests of about one size are planned, batched and learnt apart from others."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise

from fermata.applications.variant import Variant
from fermata.foundation.refusals import refuse
from fermata.foundation.sections import Count, Served, Simulated
from fermata.profiles.profile import Profile, narrowed


@dataclass(frozen=True, slots=True)
class ShapesOptions:
    """Sizes of the dimensions that vary, in buckets. Each bucket has run times of its own."""

    buckets: tuple[Count, ...]
    """The largest size of each bucket, rising. A request runs in the first that it fits; one
    beyond the last is refused."""
    pad: Served[bool] = True
    """Requests of a bucket are padded with zeros to its size, run as one, and their answers are cut
    back. `false`: only those of the same shape run together."""
    mask: Served[str] = ""
    """The input that is 1 where a request has data and 0 where it is padded; made for requests
    that leave it out."""
    tokens_max: Count = 0
    """Rows times size of one batch, at most; absent: `batch_size_max` alone limits batches."""
    sizes: Simulated[tuple[Count, ...]] = ()
    """Sizes of simulated requests, drawn evenly from these; those of the buckets where absent."""

    def bucket(self, size: int) -> int:
        """The bucket of a request of this size; 0 where it fits none."""
        place = bisect_left(self.buckets, size)
        return self.buckets[place] if place < len(self.buckets) else 0


def check_shapes(where: str, shapes: ShapesOptions) -> None:
    """Refuse buckets that make no sense, in one line."""
    if not shapes.buckets:
        refuse(f"{where}.buckets", [], "must hold at least one size")
    for before, after in pairwise(shapes.buckets):
        if after <= before:
            refuse(f"{where}.buckets", list(shapes.buckets), "must rise from one to the next")
    largest = shapes.buckets[-1]
    if shapes.tokens_max and shapes.tokens_max < largest:
        rule = f"must be at least {largest}, a single row of the largest bucket"
        refuse(f"{where}.tokens_max", shapes.tokens_max, rule)
    if shapes.sizes and max(shapes.sizes) > largest:
        refuse(f"{where}.sizes", max(shapes.sizes), f"is beyond {largest}, the largest bucket")
    if shapes.mask and not shapes.pad:
        refuse(f"{where}.mask", shapes.mask, "goes with pad: true only")


def in_bucket(name: str, bucket: int) -> str:
    """The router's name of an application or a variant, in one of its buckets."""
    return f"{name}[{bucket}]"


def variant_in(variant: Variant, shapes: ShapesOptions, bucket: int) -> Variant:
    """The variant as it runs requests of one bucket.

    Run times of a file are those of the largest bucket. Without any, each bucket is measured.
    """
    size_max = variant.batch_size_max
    if shapes.tokens_max:
        rows = max(1, shapes.tokens_max // bucket)
        size_max = min(size_max, rows) if size_max else rows
    share = bucket / shapes.buckets[-1]
    return replace(
        variant,
        name=in_bucket(variant.name, bucket),
        batch_size_max=size_max,
        profile=_narrowed(variant.profile, share),
        profiles={kind: narrowed(each, share) for kind, each in variant.profiles.items()},
    )


def _narrowed(profile: Profile | None, share: float) -> Profile | None:
    return None if profile is None else narrowed(profile, share)
