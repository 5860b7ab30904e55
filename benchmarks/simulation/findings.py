"""What follows from the figures of the page, in sentences, for the run that they stand in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SUMMARY: Final = """\
## What breaks first

1. **What the director sends.** Bytes grow with members times clients: 1.3 MB in a second with 64
   members, 15 MB with 256. It sends 50 MB in a second at most, and then tells all clients less
   often ([the director](#the-director)): at 1,000 members it sent 42 MB, with nothing spread.
2. **Where a function is warm.** A function that has several calls open in the pool is spread over
   as many members as it needs, and these are further members that have to load it: with 256
   members 90 of 100 calls find their program in memory, where it is 93 if nothing is spread. A
   load takes 33 ms in the median.

**Why functions are spread.** A member reports its load when that has changed by an eighth, ten
times a second at most, and the director tells clients as often. Until the next news, all clients
that call one function see the same loads; if each sends it to the first of its order that is below
its limit, they all choose the same member, and its queue grows by all that is called in a tenth of
a second. Chance alone does not help: clients have to know over how many members to choose. So
members tell the director how many calls of their busiest functions are open, and the director tells
clients over how many members each of these is spread. With 64 members p99 is 0.70 s, with 256
members 0.75 s; without that 0.84 s and 2.0 s. It is 1.2 s and 1.3 s if clients take the members in
turn, and 0.75 s and 0.80 s if they take a member with the least load; but these load every function
everywhere.

What does not break: keys stay with few members. With 64 members 93 of 100 calls find their
program in memory; where clients take members in turn, that are 59 and with 256 members 49
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
members as its load needs. *Nothing spread* is the same without spreads, and the pool of 1,000
members was simulated in that way only.
""",
    "director": """\
With two clients for each member, and functions spread. A message to a client has all that is new
since the one before; of a member whose load alone has changed, it has nothing but that. The
director writes it once for all clients. It asks 2,000 members in a second at most: with 256 members
a report comes every 0.8 ms.
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
* The time that the director itself needs is not simulated, only what it hears and says.
* Sizes that are not in a table were not simulated with loads told so often.
"""
