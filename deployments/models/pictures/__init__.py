"""Pictures as bytes and as pixels: headers, decoding, encoding and fitting."""
