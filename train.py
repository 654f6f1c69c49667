"""Train, measure and export a mapper: the same command as `kvmap-train`."""

from kvmap.cli.train import main

if __name__ == "__main__":
    main()
