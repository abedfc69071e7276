"""`python -m partibus.node.child`: the process of one of several brokers."""

import gc


def main() -> None:
    """See `partibus.node.supervised_broker.main`."""
    # As in `partibus serve`: modules and objects made at the start stay.
    gc.disable()
    from partibus.node.supervised_broker import main as be_member

    be_member()


if __name__ == "__main__":
    main()
