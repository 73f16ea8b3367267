{{- /* An image by name: called with root and the image's values. Without a tag it has that of the agent. */}}
{{- define "mcagent.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}{{ with .image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The key `webhook` of a controller's configuration: called with the role's values and its configuration. */}}
{{- define "mcagent.webhook-config" }}
{{- $webhook := deepCopy (.config.webhook | default dict) }}
{{- if .values.webhook.certSecret }}{{ $_ := set $webhook "certDir" "/etc/mcagent-webhook" }}{{ end }}
{{- with $webhook }}
webhook: {{- toYaml . | nindent 2 }}
{{- end }}
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
{{- end }}
