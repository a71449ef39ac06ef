"""The keys of a job's store.

::

    attempt                                number of the torchrun attempt
    attempt/<n>/[<world size>/]            one attempt; without torchrun only attempt/0/
        agent/<name> ended past           its agents, whether it is over
        meshkit/newest                 number of the newest generation
        meshkit/lease/<rank>               the process that holds a rank
        meshkit/<generation>/              one generation of the job
            left/<rank>                    present if a rank has left the job by shutdown()
            failed                         a rank announces that its call failed before it joined
            over                           another start has replaced this generation
            admitted                       the round in which a running job admits its ranks
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
            mesh/<id>/closed/<rank> waiting    ranks that have closed a mesh, spares that wait
            recovery/<number>/             one round in which ranks that live find each other
                admission                  the newcomers that this round admits
                begun                      a rank has checked in
                check_in/<rank> count decision   as in an agreement round
            recovered/<number>/            the leases and the generation of these ranks
"""

from __future__ import annotations

REQUEST = "request"
CONFLICT = "conflict"
SEVERAL_HOSTS = "several_hosts"
COUNT = "count"
DECIDERS = "deciders"
READ = "read"
DECISION = "decision"
ALL = "all"  # the decision when every rank has checked in with the same request
LEFT = "left/{}"  # rank, in the store of a generation
FAILED = "failed"
OVER = "over"
ADMITTED = "admitted"
ATTEMPT = "attempt"
ENDED = "ended"
PAST = "past"
CHECK_IN = "check_in/{}"  # rank, in the store of a round
ROUND = "{}round/{}"  # prefix and number of a round, in the store of a generation
CLAIM = "claim/{}"  # name of a claim, in the store of a round
ROUNDS = "{}rounds/{}"  # prefix and rank, in the store of a generation: the rounds of that rank
GENERATION = "meshkit/{}"  # number of a generation, in the store of an attempt
JOIN_ROUND = "meshkit/{}/round/1"  # the round in which the ranks of a generation join the job
NEWEST = "meshkit/newest"  # number of the newest generation, in the store of an attempt
LEASE = "meshkit/lease/{}"  # rank, in the store of an attempt
ATTEMPT_PART = "attempt/{}"  # number of an attempt, in the store of the job
AGENT = "agent/{}"  # name of a torchrun agent, in the store of an attempt without world size
CLOSED = "mesh/{}/closed/{}"  # the round that built a mesh and a rank, in a generation
WAITING = "mesh/{}/waiting"  # the round that built a mesh: how many spares wait for a loss
RECOVERY = "recovery/{}"  # number of a recovery, in the store of the first generation
ADMISSION = "admission"  # in the store of a recovery
BEGUN = "begun"  # in the store of a recovery
RECOVERED = "recovered/{}"  # number of a recovery, in the store of the first generation
