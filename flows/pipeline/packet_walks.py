"""What the pipeline does with a packet, in words: the part of docs/pipeline.md that no declaration holds."""

from __future__ import annotations

INTRO = """\
Every Node has the bridge `br-mc` with one port to its own kernel (`mc-gw0`, port 1) and tunnels with fixed
peers: a worker to every gateway of its cluster, a gateway to every Node of its cluster and to every gateway of
every remote cluster. Every table ends in a drop that is counted; nothing floods or learns. The destination MAC
on a tunnel inside the cluster says what a packet is: `aa:bb:cc:dd:ee:f0` nothing special, `…:f1` a Service was
translated (from a gateway), or is to be un-translated (to a gateway), `…:f2` a plain reply (to a gateway). With
`…:f1` the source MAC is `0a:6d` and the number of the Service. Only `…:f0` goes to another cluster. Below, A is
the cluster that opens a connection, B the one that serves it.
"""

PACKET_WALKS = """\
**Pod on a worker of A to a Pod of B.** Worker: Classify (host), Source (own address), conntrack zone ARRIVAL,
Departure commits the connection, Route to the group of gateways. Gateway of A: Classify (node), Source (that
Node's address), Untranslate (plain), Route finds B, Relay (directly, or by a sibling if B cannot be reached
from here), Snat (both publish their Pods: keeps the address), Exit to a gateway of B. Gateway of B: Classify
(remote A), Source (A's address), Untranslate (a published Pod), Deliver, Output to the Node. Worker of B:
Classify (gateway), Source (a remote address), Deliver (own), Arrive, ArriveState keeps the tunnel in ct_mark,
and into the kernel.

**The reply.** Worker of B: zone ARRIVAL knows it as a reply; Departure marks it `…:f2` and sends it to the
gateway in ct_mark, or another if that is dead. Gateway of B: Untranslate, Route, Relay, Snat (replies keep
their address always), Exit. Gateway of A: as above; worker of A: ArriveState delivers, since zone ARRIVAL has
the connection.

**To a Service of B.** On a gateway of B, Untranslate passes what goes to the Service CIDR through zone SERVICE.
Service lets only exported address, protocol and port choose an endpoint (the group hashes the connection over
bucket_ids that every gateway of B derives alike), commits the destination NAT, and Deliver sends it on with
`…:f1`, which the Node of the endpoint keeps in ct_mark, and the number of the Service in the source MAC, which
it keeps in ct_label. Its replies go back with both; UnDnat un-translates them: a reply never leaves with the
endpoint's address.

**A reply whose gateway was lost.** The Node sends it to another gateway, which does not have the connection. The
client may have nothing to send (a download), so nothing would ever make that gateway know it. It un-translates
without state: the number in the source MAC says which Service, and only what comes from a ready endpoint of
that Service, by protocol, address and port, gets the Service's address and port. All gateways of a cluster derive
the same numbers from the names of the exported Services. What fits no Service is dropped and counted. The next
packet of the client makes the gateway that it comes by know the connection.

**A client keeps its port.** On the userspace datapath, conntrack may give the client of a Service another source
port: what undoes the NAT of an earlier connection stays until it is swept, and counts as another connection with
the same addresses and ports. It happens to a connection that comes back to a gateway that knew it once, and to
a client that uses a port again soon after it closed a connection, as all do now and then. The server would know
the connection by a port of which the next gateway knows nothing, and answer that one's packets with a reset. So
the port that came is kept in ct_label, and Client puts it back in every request. The reply finds no connection of
zone SERVICE, and is un-translated by its number. Where conntrack has kept the port, which its lowest four bits
tell (it takes the next one that is free), Client empties the label with the first packet, so that established
connections share flows of the datapath. Where two Services lead to one endpoint, another port may really be
needed: there a TCP connection that begins (a SYN) keeps what conntrack gives it, and so do all UDP senders. The
kernel datapath removes what is closed as soon as its place is needed, and has none of this.

**The source MAC.** It holds a number on the tunnels between gateways and Nodes and nowhere else: UnDnat puts the
MAC of `mc-gw0` back before a reply goes to another cluster. What ArriveState hands to the kernel keeps it, as the
mark of a translated Service: `0a:6d:00` and the number. Everything else gets `aa:bb:cc:dd:ee:f0` there, whatever
another cluster wrote into it. So nft knows what may reach the Node itself (chain `mct_nodes`): what is marked,
replies, and ICMP errors about the Node's own connections; the rest, and what kube-proxy or the CNI would
translate, is dropped and counted, unless `exposeNodes` is set.

**Too many connections.** What another cluster sends passes that cluster's meter (AdmitService, Admit) where it
would become a new entry of conntrack: on the gateway that translates it, and on the Node that has the destination.
What is over the rate is dropped before there is an entry, so one cluster fills neither the zones nor the kernel's
own conntrack at its will; the others, this cluster's own connections, and all that are open already pass as ever.
Zones have no limits of their own: those would hold for all clusters together. Zone SNAT holds only what this
cluster opens.

**With SNAT in A.** Snat passes the packet through zone SNAT; SnatState gives a new connection the gateway's
address and keeps the port it came by in ct_label. The reply has that gateway's address as its destination, so
it goes to that gateway (Route: gateway addresses, replies only), where Untranslate and UnSnat restore the
destination and send it to the Node of the label. Host-network clients, and whatever else has an address that is
not published, are always SNATed.

**With SNAT in B as well.** SNAT is decided per direction by who opens the connection: replies are never SNATed
(Departure and UnDnat mark them), so it does not matter what B does with connections of its own.

**Pods on a gateway Node.** The same tables without a hop: from the host Departure goes on to Route; towards the
host Deliver goes on to Arrive, ct_mark's port is 1, and Departure un-translates replies by itself (zone
SERVICE, UnDnat).

**A gateway as a worker of its sibling.** A remote gateway may choose the sibling for a Pod of this gateway
Node. The sibling delivers it by tunnel like to any Node; translated replies go back to the sibling (group
prefer), all others leave by this Node itself.

**A gateway that lost a remote cluster.** Relay and the reply groups hand the packet to a live sibling,
un-SNATed and with its destination MAC kept; the sibling treats it like a packet from a Node, and sends replies
to what it SNATed to that Node directly. What comes from a gateway is never relayed again. While no sibling is live
either, packets go on directly: if that is a false alarm, they arrive.

**ICMP errors.** Conntrack calls them related and translates them with their connection; `-new` and `±rpl` treat
them like the connection's own packets. An error sent by a Node of B from its own, unpublished address is
dropped in A as spoofed; MTU errors are not among these, because the sending Node's own device has the smaller
MTU. What a client says of a reply of a Service is dropped, except on the userspace datapath by the gateway that
has the connection: the kernel translates such an error only where an action commits (ovs_ct_nat), and the hash
that chooses a gateway sees no ports in it.

**Later fragments.** They have no ports. The kernel's conntrack reassembles them wherever a packet passes
through a zone. Between gateways all fragments of a UDP datagram take the same way, since the groups do not hash
UDP ports.

**A spoofed source.** Source lets a cluster, a Node and the host use only what is theirs, with one counter per
cluster and per origin.

**Transit.** Remote to remote is not published, local to local has no route: both are dropped and counted.
"""

LIMITS = """\
A gatewayIP that lies inside the published Pod CIDRs takes replies of SNATed connections only. The userspace
datapath splits reassembled packets again after conntrack, so a first packet to a Service that is fragmented is
not exported there. A SNATed connection is reset when its gateway is lost.

A connection to a Service and one that the same client has straight to the endpoint behind it, from one source
port, are one connection for the endpoint: the new one ends the other. A client's kernel chooses source ports for
each destination apart, so with N connections of the second kind it happens to one in 28,000 / N of the first.
Connections between Pods leave no state in gateways by which it could be noticed.

Two connections of one client, from one source port, to two Services with the same endpoint: conntrack gives the
later one another source port. Its next gateway, when this one is lost, does not know that: the server answers with
a reset, or takes no notice. On the userspace datapath, where two Services share an endpoint, the same happens to
a client that uses a source port again within a minute, and to a UDP sender that paused for longer than its
connection is kept (30 s, or 60 s while nobody answers).

Conntrack that is lost on a Node (with ovs-vswitchd's process, on the userspace datapath) makes a reply that
comes before the next request look like a connection of the server's. It arrives all the same, unless it comes from
an endpoint of an exported Service: then it may have to be un-translated. In the middle of a TCP connection such a
packet is held back (Departure) until the client has been heard, which the Node's agent sees to by asking it. UDP
and SCTP replies leave as they are until the client's next packet.

Without state (after the loss of a gateway) only TCP, UDP and SCTP replies of ready endpoints are un-translated.
ICMP errors, later fragments and replies of an endpoint that is no longer ready are dropped until the client's
next packet; ready endpoints only, because nothing else says that an address is still that of the Service's Pod.
When two Services' numbers collide (1 in 2^24) and one of them goes or comes, the other may get another number:
of its connections those that are open then are not un-translated without state. The same goes for connections
opened before the agent kept numbers.
"""
