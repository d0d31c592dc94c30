"""python -m hpcfwi."""

from hpcfwi.cli import main

if __name__ == "__main__":
    main()
