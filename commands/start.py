"""The command `fermata`: it can be interrupted from the first moment on without a stack."""

import signal


def main() -> None:
    """Run the command line. Until all of it is imported, Ctrl-C ends the process as it is."""
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fermata.commands.main import main as run

    signal.signal(signal.SIGINT, heard)
    run()


if __name__ == "__main__":
    main()
