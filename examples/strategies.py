"""Train one network under every strategy, with the same number of gradients: `python examples/strategies.py [RANKS]`.

RANKS is 4 by default, and at least 3. Prints test accuracy, seconds, bytes sent, and how stale the gradients were.
"""

import sys

import paceline

RANKS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
SETTINGS = {"batch": 16, "draws": 200, "epochs": 2, "lr": 1.6, "threads": 1}
STRATEGIES = (
    "serial",
    "sync",
    "main-worker",
    "parameter-server",
    "parameter-server:rule=plain",
    "parameter-server:backup=1",
    "weight-average",
    "local-sgd:every=10",
    "local-sgd:every=10,outer-momentum=0.9,outer-lr=0.7",
    "psgd",
    "elastic",
    "hogwild",
    "gossip",
)


def main() -> None:
    if RANKS < 3:
        raise SystemExit(f"backup=1 needs a master and two workers: at least 3 ranks; got {RANKS}")
    print(f"{'strategy':52}{'accuracy':>10}{'seconds':>10}{'MB sent':>10}{'staleness':>11}")
    for strategy in STRATEGIES:
        ranks = {} if strategy == "serial" else {"ranks": RANKS}
        fitted = paceline.fit(
            "mlp:128,64", "mnist", strategy=strategy, runs=None, quiet=True, **ranks, **SETTINGS
        )
        stale = fitted.findings.get("staleness", {}).get("mean")
        print(
            f"{strategy:52}{fitted.test_accuracy:10.2%}{fitted.train_seconds:10.2f}"
            f"{fitted.bytes_sent / 1e6:10.1f}{'' if stale is None else format(stale, '11.1f')}",
            flush=True,
        )


if __name__ == "__main__":
    main()
