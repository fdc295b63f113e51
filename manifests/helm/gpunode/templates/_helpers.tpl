{{- define "gpunode.labels" -}}
app.kubernetes.io/part-of: gpunode
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The reference of an image: arguments are its values and the chart. */ -}}
{{- define "gpunode.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1).AppVersion }}
{{- end }}
{{- end }}

{{- /* The images that policies may name, as a list of CEL. The operator has the same in AGENT_IMAGES. */ -}}
{{- define "gpunode.allowedImages" -}}
['{{ .Values.agent.allowedImages | default (list .Values.agent.image.repository) | join "', '" }}']
{{- end }}

{{- /* The pod of a hook: the operator's image, with the plugin of kubectl in it. */ -}}
{{- define "gpunode.hookPod" -}}
restartPolicy: Never
nodeSelector:
  {{- toYaml .Values.operator.nodeSelector | nindent 2 }}
tolerations:
{{- with .Values.operator.tolerations }}
{{ toYaml . }}
{{- end }}
- {operator: Exists}
securityContext:
  runAsNonRoot: true
  {{- /* OpenShift gives a pod without permissions of its own a user. */ -}}
  {{- if not .Values.openshift.enabled }}
  runAsUser: 65532
  runAsGroup: 65532
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "gpunode.hookSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Annotations of a hook's objects, which go when it has succeeded. A failed one is left for a look at it until the next. */ -}}
{{- define "gpunode.hook" -}}
helm.sh/hook: {{ . }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
