{{- define "gpunode.labels" -}}
app.kubernetes.io/part-of: gpunode
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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

{{- /* Operator and hooks run beside no program of a user: a kubelet can make tokens of the pods on its node. */ -}}
{{- define "gpunode.operatorAffinity" -}}
{{- if .Values.operator.affinity -}}
{{ toYaml .Values.operator.affinity }}
{{- else -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    preference:
      matchExpressions:
      - {key: gpunode.dev/governed, operator: DoesNotExist}
      - {key: nvidia.com/gpu.present, operator: DoesNotExist}
      - {key: feature.node.kubernetes.io/pci-10de.present, operator: DoesNotExist}
      - {key: cloud.google.com/gke-accelerator, operator: DoesNotExist}
      - {key: kubernetes.azure.com/accelerator, operator: DoesNotExist}
      - {key: k8s.amazonaws.com/accelerator, operator: DoesNotExist}
  - weight: 50
    preference:
      matchExpressions:
      - {key: node-role.kubernetes.io/control-plane, operator: Exists}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
  - weight: 100
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {app.kubernetes.io/name: gpunode-agent, app.kubernetes.io/component: device-plugin}
  - weight: 10
    podAffinityTerm:
      topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {app.kubernetes.io/name: gpunode-operator}
{{- end }}
{{- end }}

{{- define "gpunode.operatorTolerations" -}}
{{- with .Values.operator.tolerations -}}
{{ toYaml . }}
{{ end -}}
- {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
- {key: CriticalAddonsOnly, operator: Exists}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
- {operator: Exists, effect: NoExecute}
{{- end }}

{{- /* The pod of a hook: the operator's image, with the plugin of kubectl in it. */ -}}
{{- define "gpunode.hookPod" -}}
restartPolicy: Never
affinity:
  {{- include "gpunode.operatorAffinity" . | nindent 2 }}
nodeSelector:
  {{- toYaml .Values.operator.nodeSelector | nindent 2 }}
tolerations:
{{- include "gpunode.operatorTolerations" . | nindent 0 }}
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

{{- /* A quota may refuse containers without resources. */ -}}
{{- define "gpunode.hookContainer" -}}
image: {{ include "gpunode.image" (list .Values.operator.image .Chart) | quote }}
imagePullPolicy: {{ .Values.operator.image.pullPolicy }}
command: [/kubectl-gpunode]
{{- with .Values.operator.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
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
