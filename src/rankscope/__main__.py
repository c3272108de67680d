"""``python -m rankscope``."""

from rankscope.start import main

main()
