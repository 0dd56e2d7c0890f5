"""Pictures at other sizes: native code that makes the pixels that Pillow makes."""
