{{- /* What the controllers of both roles have: called with root, role and the values of the role. */}}
{{- define "mcagent.controller" }}
{{- $root := .root }}
{{- $role := .role }}
{{- $v := .values }}
{{- $ns := include "mcagent.namespace" . }}
{{- $ports := include "mcagent.ports" . | fromJson }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: mcagent-controller
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent}
  {{- with $v.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if not $v.webhook.certSecret }}
---
# Filled by the controller. No type and no data, so that applying this again changes nothing.
apiVersion: v1
kind: Secret
metadata:
  name: mcagent-{{ $role }}-webhook
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
{{- end }}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: mcagent-{{ $role }}
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: mcagent-{{ $role }}
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: mcagent-{{ $role }}
subjects:
  - kind: ServiceAccount
    name: mcagent-controller
    namespace: {{ $ns }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: mcagent-{{ $role }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: mcagent-{{ $role }}
subjects:
  - kind: ServiceAccount
    name: mcagent-controller
    namespace: {{ $ns }}
---
apiVersion: v1
kind: Service
metadata:
  name: mcagent-{{ $role }}
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
spec:
  selector: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
  ports:
    - {name: webhook, port: 443, targetPort: webhook, protocol: TCP}
{{- if $v.networkPolicy.enabled }}
---
# Who may connect to the controller, and where it may connect to.
# Ingress: API servers come from addresses that no selector names (their Nodes', or a proxy's), and so do the kubelet's
# probes, so the ports are open to all sources. What is behind them requires TLS (webhook), a token (metrics), or has no
# secrets (health). Where the addresses of the control plane are known, restrict 9443 to them (networkPolicy.webhookFrom
# of the chart); where API servers can have client certificates, require these (webhook.clientCA of the configuration).
# Egress: the controller needs DNS and API servers, its own and the leader's. No selector names these addresses either,
# and their ports differ, so egress is open. Where they are known, restrict it to them (networkPolicy.egressTo of the
# chart).
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: mcagent-{{ $role }}
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
spec:
  podSelector:
    matchLabels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
  policyTypes: [Ingress{{ if $v.networkPolicy.egressTo }}, Egress{{ end }}]
  ingress:
    {{- with $v.networkPolicy.webhookFrom }}
    - ports:
        - {port: {{ $ports.webhook }}, protocol: TCP} # webhook
      from:
        {{- range . }}
        - ipBlock: {cidr: {{ . | quote }}}
        {{- end }}
    {{- end }}
    - ports:
        {{- if not $v.networkPolicy.webhookFrom }}
        - {port: {{ $ports.webhook }}, protocol: TCP} # webhook
        {{- end }}
        - {port: {{ $ports.health }}, protocol: TCP} # health
        - {port: {{ $ports.metrics }}, protocol: TCP} # metrics
  {{- with $v.networkPolicy.egressTo }}
  egress:
    - ports: # DNS, as Services and as Pods: a policy may see either port; 5353 is OpenShift's, 8053 Gardener's
        {{- range $port := list 53 5353 8053 }}
        - {port: {{ $port }}, protocol: UDP}
        - {port: {{ $port }}, protocol: TCP}
        {{- end }}
    - to:
        {{- range . }}
        - ipBlock: {cidr: {{ . | quote }}}
        {{- end }}
      ports:
        - {protocol: TCP} # API servers
  {{- end }}
{{- end }}
{{- if and $v.podDisruptionBudget.enabled (gt (int $v.replicas) 1) }}{{/* of one alone, it would stop every drain */}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: mcagent-{{ $role }}
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
spec:
  minAvailable: {{ $v.podDisruptionBudget.minAvailable }}
  selector:
    matchLabels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: mcagent-{{ $role }}
  namespace: {{ $ns }}
  labels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
spec:
  replicas: {{ $v.replicas }} # one writes, the other takes over within the Lease (15 s); both serve the webhook
  selector:
    matchLabels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
  strategy:
    type: RollingUpdate
    {{- /* One alone answers until the next is ready; on the Node's ports two would not fit. */}}
    {{- $alone := and (eq (int $v.replicas) 1) (not $v.hostNetwork) }}
    rollingUpdate: {maxUnavailable: {{ ternary 0 1 $alone }}, maxSurge: 1}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: mcagent
        app.kubernetes.io/component: {{ $role }}
        {{- with $v.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ include (printf "mcagent.%s-config" $role) $root | sha256sum }} # a changed configuration restarts the Pods
        prometheus.io/scrape: "true"
        prometheus.io/port: "{{ $ports.metrics }}"
        prometheus.io/scheme: https
        {{- with $v.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: mcagent-controller
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      priorityClassName: {{ $v.priorityClassName }}
      enableServiceLinks: false
      {{- if $v.hostNetwork }}
      hostNetwork: true # for API servers that reach Nodes, but no Pods
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      terminationGracePeriodSeconds: 30 # what is being written is finished, then the Lease is given up
      nodeSelector:
        kubernetes.io/os: linux
        {{- with $v.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if $v.affinity }}
      affinity: {{- toYaml $v.affinity | nindent 8 }}
      {{- else }}
      affinity:
        podAntiAffinity: # preferred, so that a cluster of one Node can run it
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
      {{- end }}
      {{- with $v.topologyKeys }}
      topologySpreadConstraints: # preferred too
        {{- range . }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {app.kubernetes.io/name: mcagent, app.kubernetes.io/component: {{ $role }}}
        {{- end }}
      {{- end }}
      tolerations: {{- toYaml $v.tolerations | nindent 8 }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: controller
          image: {{ include "mcagent.image" (dict "root" $root "image" $root.Values.image) }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: [controller, {{ $role }}, --config, /etc/mcagent/controller.yaml]
          {{- with $v.extraEnv }}
          env: {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - {name: health, containerPort: {{ $ports.health }}, protocol: TCP}
            - {name: metrics, containerPort: {{ $ports.metrics }}, protocol: TCP}
            - {name: webhook, containerPort: {{ $ports.webhook }}, protocol: TCP}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
          startupProbe:
            httpGet: {path: /healthz, port: health}
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /healthz, port: health}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: health}
            periodSeconds: 5
            timeoutSeconds: 3
            failureThreshold: 2
          resources: {{- toYaml $v.resources | nindent 12 }}
          volumeMounts:
            - {name: config, mountPath: /etc/mcagent, readOnly: true}
            - {name: tmp, mountPath: /tmp}
            {{- if $v.webhook.certSecret }}
            - {name: webhook, mountPath: /etc/mcagent-webhook, readOnly: true}
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: mcagent-{{ $role }}
        {{- with $v.webhook.certSecret }}
        - name: webhook
          secret: {secretName: {{ . | quote }}}
        {{- end }}
        - name: tmp # certificates of authorities, for the TLS library
          emptyDir:
            medium: Memory
            sizeLimit: 16Mi
{{- end }}
