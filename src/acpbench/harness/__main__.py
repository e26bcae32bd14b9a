"""``python -m acpbench.harness``: the child process of the scripted harness."""

from acpbench.harness.scripted import main

main()
