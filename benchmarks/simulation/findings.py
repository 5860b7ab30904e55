"""What follows from the figures of the page, in sentences, for the run that they stand in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SUMMARY: Final = """\
## What breaks first

1. **How old loads are, above 256 members.** The director asks 2,000 members in a second at most:
   with 1,000 members each reports every half second, and not every tenth. Until then all clients
   see the same members with little to do, and send their calls there: the busiest member has 3.0
   times the work of the mean one, in one of three runs 6.4 times. p99 is 1.4 s, in that run 2.4 s;
   with 256 members it is 0.80 s. Clients that take 1,000 members in turn need no news, and have a
   p99 of 1.2 s; but 41 of 100 calls find their program in memory then, and p50 is 62 ms, where it
   is 37 ms.
2. **Where a function is warm.** A function that has several calls open in the pool is spread over
   as many members as it needs, and these are further members that have to load it: with 256
   members and more, 90 of 100 calls find their program in memory, where it is 93 to 95 if nothing
   is spread. A load takes 33 ms in the median.
3. **What the director sends.** Bytes grow with members times clients: 0.6 MB in a second with 64
   members, 2.4 MB with 256, 11 MB with 1,000. It sends 50 MB in a second at most, and then tells
   all clients less often ([the director](#the-director)). That was what broke first before changes
   were compressed: it sent 46 MB with 1,000 members, told clients 1.4 times in a second, which are
   7.6 times now, and p99 was 2.1 s and 3.0 s with seeds 1 and 2, which is 1.4 s and 2.4 s now.

**Why functions are spread.** A member reports its load when that has changed by an eighth, ten
times a second at most, and the director tells clients as often. Until the next news, all clients
that call one function see the same loads; if each sends it to the first of its order that is below
its limit, they all choose the same member, and its queue grows by all that is called in a tenth of
a second. Chance alone does not help: clients have to know over how many members to choose. So
members tell the director how many calls of their busiest functions are open, and the director tells
clients over how many members each of these is spread. With 64, 256 and 1,000 members p99 is 0.71 s,
0.80 s and 1.4 s; without that 0.84 s, 1.9 s and 11 s. It is 1.2 s, 1.3 s and 1.2 s if clients take
the members in turn, and 0.75 s, 0.77 s and 0.92 s if they take a member with the least load; but
these load every function everywhere.

What does not break: keys stay with few members. With 64 members 93 of 100 calls find their
program in memory, with 1,000 members 90; where clients take members in turn, that are 59 and 41
of 100. With programs shared, a program is compiled once for each edit, whatever the
routing.
"""

AFTER: Final[Mapping[str, str]] = {
    "sizes": """\
*Consistent hashing* keeps the most calls warm, and fails at 16 members: a popular function can
be more work than one member can do, and its calls wait the longer the longer the run is. *Least
loaded* and *round robin* spread the work, so every member needs every function, and with 64
members two of five calls wait for a program. That costs them little only because the store is
shared and programs are quick to load, in the median 33 ms. With *nothing shared* each member
compiles what it has not had itself: there are more programs to compile than members can
compile, and p99 has no bound. The bound of *jaxd* and its spreads have a function warm on as many
members as its load needs. *Nothing spread* is the same without spreads.
""",
    "director": """\
With two clients for each member, and functions spread. A message to a client has all that is new
since the one before; of a member whose load alone has changed, it has nothing but that. The
director writes it once for all clients, and compresses it where it is long. It asks 2,000 members
in a second at most: with 1,000 members, each of them every half second.
""",
    "stale": """\
With nothing spread, which is what is told too late otherwise. Members look at their load as often,
and at least twice a second. With 256 members, what each client does not know of the others is more
than frequent news help.
""",
    "bound": """\
With nothing spread. Of little weight beside the age of the loads, up to 2; with 4, p99 is more than
twice as long.
""",
    "refusing": """\
With nothing spread. What would help as well: a member that has reached its limit, which it knows
without delay, passes a call on before it runs; the client goes on to the next in the order, for
one small call more, and remembers until the next news. Where four calls are within every limit,
fewer calls go to members without their program.
""",
}

LIMITS: Final = """\
## What this does not say

* Calls arrive at random and do not wait for each other, however long answers take. Clients that
  wait for one answer before they call again would slow down, and queues would be shorter.
* A member has one device and runs one program at a time, all arguments are at hand, and the
  network takes no time of its own. Values that stay on members, which draw calls after them,
  are not in it, nor are quotas, fairness, batches, or members with several devices.
* Popularity, durations and edits do not depend on each other. If functions that are called most
  are the short ones, the first limit lies at larger pools, and if they are the long ones, at
  smaller.
* It begins as after long work. A pool that begins with an empty store compiles every function
  once.
* The runs are short, ten seconds of a pool of 1,000 members: where calls have no bound, the
  figures grow with the run, and deaths that are noticed near its end have no sequel.
* The time that the director itself needs is not simulated, only what it hears and says. Measured
  beside each other on a busy machine, a message takes it about half the processor time that a small
  call takes its client; it is one process, and 1,000 members have it send 15,000 in a second.
* Rows of 64 members where nothing is spread, or the least loaded is taken, were simulated before
  the changes that clients are told were compressed: loads are 3 % older in them.
* Sizes that are not in a table were not simulated with loads told so often.
"""
