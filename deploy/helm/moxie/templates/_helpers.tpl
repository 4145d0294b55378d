{{/* The release's name, with "moxie" in it. */}}
{{- define "moxie.name" -}}
{{- if contains "moxie" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-moxie" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/*
The Service. A Service called moxie would set MOXIE_PORT and the like in other pods, which are names of
switches: a name that begins otherwise cannot.
*/}}
{{- define "moxie.service" -}}
llm-{{ include "moxie.name" . }}
{{- end }}

{{- define "moxie.selector" -}}
app.kubernetes.io/name: moxie
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "moxie.labels" -}}
{{ include "moxie.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Of one component: dict "root" . "component" "router" */}}
{{- define "moxie.component" -}}
app.kubernetes.io/name: moxie-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "moxie.grace" -}}
{{ add .Values.drain.delay .Values.drain.timeout .Values.drain.slack }}
{{- end }}

{{/* What no container here needs, and none gets. */}}
{{- define "moxie.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "moxie.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "moxie.modelFlag" -}}
{{- if eq .Values.model.source "embedded" }}embedded
{{- else if eq .Values.model.source "claim" }}{{ printf "/models/%s" (trimPrefix "/" .Values.model.path) | trimSuffix "/" }}
{{- else }}{{ .Values.model.repository }}
{{- end }}
{{- end }}

{{/* Values that do not fit together, which the schema cannot say. */}}
{{- define "moxie.check" -}}
{{- $m := .Values.model }}
{{- if and (eq $m.source "claim") (not $m.claim) }}{{ fail "model.source is claim: name the PersistentVolumeClaim in model.claim" }}{{ end }}
{{- if and (eq $m.source "pull") (not $m.repository) }}{{ fail "model.source is pull: name a repository in model.repository" }}{{ end }}
{{- if and (eq $m.source "pull") (ne $m.revision "main") $m.cacheClaim }}{{ fail "model.revision and model.cacheClaim: of several revisions in a cache the server takes main; leave cacheClaim empty" }}{{ end }}
{{- if and .Values.router.enabled .Values.apiKeys.secret }}{{ fail "router.enabled and apiKeys.secret: the router does not pass keys on with every route; check keys in front of it" }}{{ end }}
{{- if and .Values.autoscaling.enabled (not .Values.podMonitor.enabled) }}{{ fail "autoscaling.enabled needs podMonitor.enabled: its query names the monitor's job" }}{{ end }}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.picker.image) }}{{ fail "inferencePool.enabled: name the endpoint picker's image in inferencePool.picker.image" }}{{ end }}
{{- end }}
