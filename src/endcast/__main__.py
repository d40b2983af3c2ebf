"""``python -m endcast`` is the console command."""

from endcast.cli import main

main()
