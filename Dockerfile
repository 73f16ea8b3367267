# The images: `make image`, or docker build, podman build, buildah bud. agent: of agent and controllers; openvswitch: the same,
# with an Open vSwitch for Nodes that have none.
# Programs, their libraries and Python's packages of the lock, and no distribution: no shell, no package manager.
# BASE_IMAGE is the one image from elsewhere. Releases name it with its digest (CONTRIBUTING.md).
ARG BASE_IMAGE=docker.io/library/debian:trixie-slim
FROM ${BASE_IMAGE} AS packages
# openvswitch-common: ovs-ofctl; nftables: nft; wireguard-go: for kernels without WireGuard (needs /dev/net/tun).
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        python3 python3-venv ca-certificates openvswitch-common nftables wireguard-go

FROM packages AS build
WORKDIR /src
COPY .ci/requirements.lock .ci/requirements-build.lock .ci/
RUN python3 -m venv /opt/mcagent \
    && /opt/mcagent/bin/pip install --no-cache-dir --no-compile --require-hashes -r .ci/requirements.lock \
    && python3 -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r .ci/requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY flows flows
COPY mcagent mcagent
COPY deploy/*.yaml deploy/
COPY deploy/image deploy/image
# VERSION: of the tag (deploy/image/build); there is no git here to read it from.
ARG VERSION=0+unknown
# kubernetes.aio, and what it alone needs, is a second client, for asyncio, as large as the one in use; its thousand
# models are read by nobody here, so they are not compiled. try.py imports everything that is left.
RUN SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION /opt/build/bin/python -m hatchling build -t wheel -d /dist \
    && /opt/mcagent/bin/pip install --no-cache-dir --no-compile --no-deps /dist/*.whl \
    && rm -rf /opt/mcagent/lib/python3*/site-packages/kubernetes/aio /opt/mcagent/lib/python3*/site-packages/kubernetes/e2e_test \
    && /opt/mcagent/bin/pip uninstall -y -q \
        aiohttp aiohttp-retry aiohappyeyeballs aiosignal attrs frozenlist multidict propcache yarl \
    && /opt/mcagent/bin/pip uninstall -y -q pip \
    && rm -f /opt/mcagent/bin/[Aa]ctivate* \
    && python3 deploy/image/collect.py /out --standard-library /usr/lib/python3.13 --tree /opt/mcagent \
        --program python3 --program nft --program ovs-ofctl --program wireguard-go \
        --file /etc/ssl/certs/ca-certificates.crt \
    && python3 -m compileall -q --invalidation-mode unchecked-hash -x 'kubernetes/client/(models|api)/' \
        -s /out /out/opt/mcagent/lib /out/usr/lib/python3.13 \
    && mkdir -p /out/usr/share/mcagent \
    && python3 deploy/image/sbom.py /out mcagent > /out/usr/share/mcagent/sbom.spdx.json \
    && chroot /out /opt/mcagent/bin/python -B - < deploy/image/try.py

# What Open vSwitch needs beside what the agent's image has. Its package must not start a daemon while it is installed.
FROM packages AS switch
RUN printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d \
    && apt-get update && apt-get install -y --no-install-recommends openvswitch-switch
COPY deploy/image deploy/image
COPY --from=build /out /try
RUN python3 deploy/image/collect.py /out --above /try \
        --program ovsdb-server --program ovsdb-tool --program ovs-vswitchd --program ovs-vsctl --program ovs-appctl \
        --file /usr/share/openvswitch/vswitch.ovsschema \
    && cp -a /out/. /try \
    && mkdir -p /out/usr/share/mcagent \
    && python3 deploy/image/sbom.py /try mcagent-openvswitch > /out/usr/share/mcagent/sbom.spdx.json \
    && chroot /try /usr/sbin/ovs-vswitchd --version \
    && chroot /try /usr/sbin/ovsdb-server --version \
    && chroot /try /usr/bin/ovs-vsctl --version \
    && chroot /try /usr/bin/ovs-appctl --version

# `make sbom`: the list of what is in the image, as a file.
FROM scratch AS sbom
COPY --from=build /out/usr/share/mcagent/sbom.spdx.json /

FROM scratch AS agent
COPY --from=build /out /
# One arena of glibc's malloc (mallopt(3)): Python's threads allocate one at a time, and each would have an arena.
ENV PATH=/opt/mcagent/bin:/usr/sbin:/usr/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=1
# The agent's manifest asks for root, because Open vSwitch's sockets are root's; nothing else needs it.
USER 65532:65532
ENTRYPOINT ["mcagent"]
CMD ["agent"]

# Open vSwitch for Nodes that have none: the agent's layer, and the daemons over it.
FROM agent AS openvswitch
COPY --from=switch /out /
USER 0:0
CMD ["openvswitch"]

# What is built when no target is named.
FROM agent
