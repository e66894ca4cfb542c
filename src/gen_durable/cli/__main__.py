"""`python -m gen_durable.cli`: the command line by the name of its package."""

from gen_durable.cli import main

if __name__ == "__main__":
    main()
