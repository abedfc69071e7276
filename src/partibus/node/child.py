"""`python -m partibus.node.child`: the process of one of several brokers."""

import gc


def main() -> None:
    """Run a supervised broker (`partibus.node.supervised.main`)."""
    # As in `partibus serve`: modules and objects made at the start stay.
    gc.disable()
    from partibus.node.supervised import main as run

    run()


if __name__ == "__main__":
    main()
