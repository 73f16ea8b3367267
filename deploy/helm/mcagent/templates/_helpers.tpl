{{- /* An image by name: called with root and the image's values. Without a tag it has that of the agent. */}}
{{- define "mcagent.image" -}}
{{ with .root.Values.image.registry }}{{ . }}/{{ end }}{{ .image.repository }}:{{ .image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}{{ with .image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The key `webhook` of a controller's configuration: called with the role's values and its configuration. */}}
{{- define "mcagent.webhook-config" }}
{{- $webhook := deepCopy (.config.webhook | default dict) }}
{{- if .values.webhook.certSecret }}{{ $_ := set $webhook "certDir" "/etc/mcagent-webhook" }}{{ end }}
{{- with $webhook }}
webhook: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Ports of a controller, as JSON: those of its configuration; its own where it serves none. Called with the role's values.
A leader on the Node's network has others than a member: see leader.yaml. */}}
{{- define "mcagent.ports" -}}
{{- $c := .values.config }}
{{- $metrics := dig "metrics" "bindAddress" "" $c | regexFind "[1-9][0-9]*$" | default "8443" }}
{{- $health := dig "health" "healthProbeBindAddress" "" $c | regexFind "[1-9][0-9]*$" | default "8080" }}
{{- $ports := dict "health" (int $health) "metrics" (int $metrics) "webhook" (dig "webhook" "port" 0 $c | int | default 9443) }}
{{- if and .values.hostNetwork (eq .role "leader") }}{{ $ports = dict "health" 8081 "metrics" 8444 "webhook" 9444 }}{{ end }}
{{- $ports | toJson }}
{{- end }}

{{- define "mcagent.namespace" -}}
{{- if eq .role "leader" }}{{ .root.Values.leader.namespace }}{{ else }}{{ .root.Release.Namespace }}{{ end }}
{{- end }}

{{- define "mcagent.pull" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What is wrong only together; values.schema.json says what is wrong by itself. */}}
{{- define "mcagent.check" -}}
{{- if not (or .Values.agent.enabled .Values.member.enabled .Values.leader.enabled) }}
{{- fail "nothing to install: enable agent, member or leader" }}
{{- end }}
{{- if and .Values.member.enabled .Values.leader.enabled (eq .Values.leader.namespace .Release.Namespace) }}
{{- fail (printf "leader and member cannot both be in namespace %s: choose another leader.namespace" .Release.Namespace) }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not .Values.podMonitor.tokenSecret) (not .Values.metricsReader.enabled) }}
{{- fail "podMonitor.enabled needs metricsReader.enabled=true, or a Secret with a token in podMonitor.tokenSecret" }}
{{- end }}
{{- if eq (.Values.agent.config.healthListen | default "") "0" }}
{{- fail "agent.config.healthListen must be address:port: the DaemonSet's probes ask it" }}
{{- end }}
{{- range $role := list "member" "leader" }}
{{- $v := index $.Values $role }}
{{- $address := dig "health" "healthProbeBindAddress" "" $v.config }}
{{- $used := and $v.enabled $address (not (and $v.hostNetwork (eq $role "leader"))) }}{{/* see leader.yaml */}}
{{- if and $used (not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\])?:" $address)) }}
{{- fail (printf "%s.config.health.healthProbeBindAddress must be an address of all devices, such as :8080: the kubelet asks the Pod's" $role) }}
{{- end }}
{{- end }}
{{- range $role, $durations := .Files.Get "files/durations.json" | fromJson }}
{{- range $path, $bounds := $durations }}
{{- $value := (index $.Values $role).config }}
{{- range splitList "." $path }}{{ $value = get ($value | default dict) . }}{{ end }}
{{- if kindIs "string" $value }}{{ if $value }}
{{- $seconds := 0.0 }}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)?" $value -1 }}
{{- $unit := regexFind "[a-z]+$" . }}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) (get (dict "ms" 0.001 "" 1.0 "s" 1.0 "m" 60.0 "h" 3600.0) $unit)) }}
{{- end }}
{{- if or (lt $seconds (index $bounds 0 | float64)) (gt $seconds (index $bounds 1 | float64)) }}
{{- fail (printf "%s.config.%s must be %s, not %q" $role $path (index $bounds 2) $value) }}
{{- end }}
{{- end }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
