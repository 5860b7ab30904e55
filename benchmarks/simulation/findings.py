"""What follows from the figures of the page, in sentences, for the run that they stand in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SUMMARY: Final = """\
## What breaks first

1. **The age of the loads, between 16 and 64 members.** The director asks a member for its load
   twice a second, and tells clients once a second. Until the next news, all clients that call
   one function send it to the same member: the first of its order that was below its limit.
   With 64 members some functions are more work than a few members can do, and each second one
   member gets all of it. p99 is then 3.2 s, where it is 1.2 s if clients take the members in
   turn; with 256 members it is 9.8 s beside 1.1 s, with 1,000 members 23 s beside 1.2 s. It is
   the loads that are too old, and not the bound: see [how often clients are
   told](#how-often-clients-are-told), and [members that pass calls
   on](#members-that-pass-calls-on).
2. **What the director sends, beyond 1,000 members.** All members have news every second, and all
   clients get all of them, so bytes grow with members times clients. Which functions are warm
   would be nearly all of these bytes, and their end between 256 and 1,000 members; clients are
   not sent it ([the director](#the-director)).

What does not break: keys stay with few members. At every size 96 of 100 calls and more find
their program in memory; where clients take members in turn, that are 59 of 100 with 64 members
and 41 with 1,000. With programs shared, a program is compiled once for each edit, whatever the
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
compile, and p99 has no bound. The bound of *jaxd* has a function warm on as many members as its
load needs, and costs 2 to 4 of 100 warm calls.
""",
    "director": """\
With two clients for each member. Heartbeats are few: with 1,000 members one comes every 0.5 ms.
News are the load: a process that does nothing but send moved 1 MB in 1.3 ms over TCP
(docs/curves.md), so 760 MB in a second are the end of a director, whatever else it has to do
for each client. With the list of warm functions, which no client needs to choose a member, it
would be 1.5 GB with 1,000 members; so clients are not sent that list, and it is 28 MB.
""",
    "stale": """\
The members are asked twice as often as clients are told. With loads that are told every 0.03 s
p99 is lower than with any other way to route, at either size; every 0.1 s, with 64 members
only.
""",
    "bound": """\
Of little weight beside the age of the loads, up to 2; with 4, p99 is a third longer.
""",
    "refusing": """\
What would help as much as young loads: a member that has reached its limit, which it knows
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
"""
