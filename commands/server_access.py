"""The options by which every command that talks to a server gets in."""

from typing import Annotated

import typer

from fermata.clients.access import Access
from fermata.clients.wire.errors import WireError
from fermata.foundation.errors import ConfigError

TokenFile = Annotated[
    str,
    typer.Option(envvar="FERMATA_TOKEN_FILE", help="File with the token that the server asks for."),
]
TokenEnv = Annotated[str, typer.Option(help="Environment variable that holds the token.")]
CaFile = Annotated[
    str,
    typer.Option(envvar="FERMATA_CA_FILE", help="CA of the server's certificate; means TLS."),
]
CertificateFile = Annotated[
    str,
    typer.Option(
        envvar="FERMATA_CERTIFICATE_FILE", help="Client certificate, if the server requires one."
    ),
]
KeyFile = Annotated[
    str, typer.Option(envvar="FERMATA_KEY_FILE", help="Private key for --certificate-file.")
]
ServerName = Annotated[
    str, typer.Option(help="Name in the server's certificate, where that is another than its host.")
]


def access_of(
    token_file: str, token_env: str, ca_file: str, certificate_file: str, key_file: str, name: str
) -> Access:
    try:
        access = Access(token_file, token_env, ca_file, certificate_file, key_file, name)
        # The files are read at each connection; faults in them are better reported now.
        access.headers()
        access.context()
    except WireError as error:
        raise ConfigError(str(error)) from None
    return access
