"""SneakPeek: choosing the variant by what is in the request."""
