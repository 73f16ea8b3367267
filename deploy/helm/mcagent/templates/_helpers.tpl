{{- define "mcagent.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
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
