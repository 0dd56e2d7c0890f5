"""Who is served when not everyone can be: shares of backends, admission and precedence."""
