"""Builds what resizes pictures: `python -m fermata.deployments.models.pictures.resizing.build`."""

from pathlib import Path

from fermata.deployments.extensions import Extension

# As fast as it can be, and with the very floats of Pillow: products are not fused with sums.
FLAGS = ("-O3", "-ffp-contract=off")
RESIZING = Extension("fermata_resizing", Path(__file__).parent, ("resizing.c",), flags=FLAGS)

if __name__ == "__main__":
    RESIZING.build_and_say("native resizing", "Pillow resizes")
