"""ACP-Bench: does an agent turn a pathology goal into an executed, evidenced, claim-bounded analysis?"""

__version__ = "0.1.0"
