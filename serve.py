"""Answer through a mapped cache: the same command as `kvmap-serve`."""

from kvmap.cli.serve import main

if __name__ == "__main__":
    main()
