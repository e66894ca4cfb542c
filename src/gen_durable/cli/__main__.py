"""`python -m gen_durable.cli` is `gen-durable`."""

from gen_durable.cli import main

if __name__ == "__main__":
    main()
