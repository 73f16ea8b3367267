# The image of agent and controllers. The Node's own Open vSwitch does the forwarding: only its client tools are in here.
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY .ci/requirements.lock .ci/requirements.lock
RUN python3 -m venv /opt/mcagent \
    && /opt/mcagent/bin/pip install --no-cache-dir --require-hashes -r .ci/requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY flows flows
COPY mcagent mcagent
RUN /opt/mcagent/bin/pip install --no-cache-dir --no-deps . \
    && /opt/mcagent/bin/pip uninstall -y pip \
    && /opt/mcagent/bin/python -m compileall -q /opt/mcagent/lib

FROM debian:trixie-slim
# openvswitch-common: ovs-ofctl; nftables: nft; wireguard-go: for kernels without WireGuard (needs /dev/net/tun).
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 openvswitch-common nftables iproute2 wireguard-go \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/mcagent /opt/mcagent
ENV PATH=/opt/mcagent/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["mcagent"]
CMD ["agent"]
