"""The keys of a job's store.

::

    attempt                                number of the torchrun attempt
    attempt/<n>/[<world size>/]            one attempt; without torchrun only attempt/0/
        agent/<name> ended past           its agents, whether it is over
        meshkit/lease/<rank>               the process that holds a rank
        meshkit/<generation>/              one generation of the job
            over                           another start has replaced this generation
            rounds/<rank>                  rounds of a rank, if the store is not ours alone
            [<prefix>]round/<id>/          one agreement round
                request                    the first proposal
                claim/<key>                the first rank that claims a value
                conflict                   the first conflict
                several_hosts              present if ranks come from different hosts
                check_in/<rank>            the process and the request of a rank
                count deciders read        counters
                decision                   the outcome that every rank follows
            seeds/...                      seeds of later init() calls
"""

from __future__ import annotations

import torch.distributed as dist

REQUEST = "request"
CONFLICT = "conflict"
SEVERAL_HOSTS = "several_hosts"
COUNT = "count"
DECIDERS = "deciders"
READ = "read"
DECISION = "decision"
OVER = "over"
ATTEMPT = "attempt"
ENDED = "ended"
PAST = "past"
CHECK_IN = "check_in/{}"  # rank, in the store of a round
ROUND = "{}round/{}"  # prefix and number of a round, in the store of a generation


def claim_key(name: str) -> str:
    """Return the key of a claim, in the store of a round."""
    return f"claim/{name}"


def lease_key(rank: int) -> str:
    """Return the key of a rank's lease, in the store of an attempt."""
    return f"meshkit/lease/{rank}"


def agent_key(agent: str) -> str:
    """Return the key of a torchrun agent, in the store of an attempt without world size."""
    return f"agent/{agent}"


def rounds_key(rank: int, prefix: str = "") -> str:
    """Return the key that counts a rank's rounds, in the store of a generation."""
    return f"{prefix}rounds/{rank}"


def attempt_store(store: dist.Store, number: int) -> dist.Store:
    """Return the part of a job's store that belongs to one attempt."""
    return dist.PrefixStore(f"attempt/{number}", store)


def generation_store(base: dist.Store, generation: int) -> dist.PrefixStore:
    """Return the part of an attempt's store that belongs to one generation of the job."""
    return dist.PrefixStore(f"meshkit/{generation}", base)


def round_store(store: dist.Store, round_id: int, prefix: str = "") -> dist.Store:
    """Return the part of a generation's store that belongs to one agreement round."""
    return dist.PrefixStore(ROUND.format(prefix, round_id), store)


def join_round(base: dist.Store, generation: int) -> dist.Store:
    """Return the store of the round in which the ranks of a generation join the job."""
    return round_store(generation_store(base, generation), 1)
