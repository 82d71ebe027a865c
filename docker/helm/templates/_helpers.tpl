{{- define "bridge.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "bridge.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bridge.labels" -}}
{{ include "bridge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Names under which services call the api. */}}
{{- define "bridge.hosts" -}}
{{- $name := include "bridge.name" . -}}
{{- $ns := .Release.Namespace -}}
{{- list $name (printf "%s.%s" $name $ns) (printf "%s.%s.svc" $name $ns) (printf "%s.%s.svc.cluster.local" $name $ns) | toJson -}}
{{- end }}

{{/* Settings as environment: [prefix, map]. Lists, and maps whose names are not the bridge's, are JSON. */}}
{{- define "bridge.environment" -}}
{{- $prefix := index . 0 -}}
{{- range $name, $value := index . 1 }}
{{- $full := printf "%s%s" $prefix (upper $name) }}
{{- if and (kindIs "map" $value) (not (has $full (list "OUTBOX_BRIDGE_KAFKA" "OUTBOX_BRIDGE_AUTH__CERTIFICATES"))) }}
{{- include "bridge.environment" (list (printf "%s__" $full) $value) }}
{{- else }}
- name: {{ $full }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The pod of a role: [root, role, what `outbox-bridge` is told]. */}}
{{- define "bridge.pod" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $own := index $root.Values.roles $role -}}
{{- $secret := mergeOverwrite (deepCopy $root.Values.secret) ($own.secret | default dict) -}}
{{- $settings := mergeOverwrite (deepCopy $root.Values.settings) (deepCopy ($own.settings | default dict)) -}}
{{- $files := dict "database_url_file" "/run/secrets/outbox-bridge/database-url" -}}
{{- $items := list (dict "key" $secret.databaseUrl "path" "database-url") -}}
{{- if $secret.securityKeys }}
{{- $items = append $items (dict "key" $secret.securityKeys "path" "security-keys") }}
{{- $_ := set $files "security" (dict "keys_file" "/run/secrets/outbox-bridge/security-keys") }}
{{- end }}
{{- if and $secret.adminKey (eq $role "api") }}
{{- $items = append $items (dict "key" $secret.adminKey "path" "admin-key") }}
{{- $_ := set $files "auth" (dict "admin_key_file" "/run/secrets/outbox-bridge/admin-key") }}
{{- end }}
{{- $kafka := dict }}
{{- if $secret.kafkaPassword }}
{{- $items = append $items (dict "key" $secret.kafkaPassword "path" "kafka-password") }}
{{- $_ := set $kafka "sasl.password_file" "/run/secrets/outbox-bridge/kafka-password" }}
{{- end }}
{{- if $secret.kafkaCa }}
{{- $items = append $items (dict "key" $secret.kafkaCa "path" "kafka-ca.pem") }}
{{- $_ := set $kafka "ssl.ca.location" "/run/secrets/outbox-bridge/kafka-ca.pem" }}
{{- end }}
{{- $_ := set $files "kafka" $kafka }}
{{- range $secret.files }}
{{- $items = append $items (dict "key" . "path" (printf "files/%s" .)) }}
{{- end }}
{{- if dig "http" "metrics_tls" false $settings }}
{{- fail "settings.http.metrics_tls: probes and Prometheus ask the port of metrics in clear" }}
{{- end }}
{{- $http := dict }}
{{- if ne $role "migrate" }}
{{- $http = dict "metrics_port" 8790 "metrics_host" "0.0.0.0" }}
{{- end }}
{{- if eq $role "api" }}
{{- $hosts := concat (include "bridge.hosts" $root | fromJsonArray) (dig "http" "allowed_hosts" list $settings) | uniq }}
{{- $_ := set $http "allowed_hosts" $hosts }}
{{- end }}
{{- if eq $role "remoting" }}
{{- if and (ne $root.Values.remotingService.type "ClusterIP") (not (dig "remoting" "advertise" "" $settings)) }}
{{- fail "roles.remoting.settings.remoting.advertise: under which host:port clients reach a door that is open beyond the cluster" }}
{{- end }}
{{- $place := printf "%s-remoting.%s.svc:%v" (include "bridge.name" $root) $root.Release.Namespace $root.Values.remotingService.port }}
{{- $door := dict "host" "0.0.0.0" "port" 9876 "advertise" $place "tls" (ternary "required" "off" (ne $root.Values.tls.secret "")) }}
{{- $settings = mergeOverwrite (dict "remoting" $door) $settings }}
{{- end }}
{{- $takesTls := and (has $role (list "api" "remoting")) $root.Values.tls.secret }}
{{- if $takesTls }}
{{- $tls := dict "cert" "/run/tls/tls.crt" "key" "/run/tls/tls.key" }}
{{- if $root.Values.tls.clientCa }}{{ $_ := set $tls "client_ca" "/run/tls/ca.crt" }}{{ end }}
{{- $_ := set $http "tls" $tls }}
{{- end }}
{{- $settings = mergeOverwrite $settings $files (dict "http" $http) -}}
metadata:
  labels:
    {{- include "bridge.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
  {{- with $root.Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 45
  {{- if eq $role "migrate" }}
  restartPolicy: OnFailure
  {{- else }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "bridge.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $role }}
  {{- end }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: {{ $role }}
      {{- with $root.Values.image }}
      image: "{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $root.Chart.AppVersion }}{{ end }}"
      imagePullPolicy: {{ .pullPolicy }}
      {{- end }}
      args: {{ index . 2 | toJson }}
      env: {{- include "bridge.environment" (list "OUTBOX_BRIDGE_" $settings) | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      {{- with $own.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if ne $role "migrate" }}
      ports:
        {{- if eq $role "api" }}
        - {name: api, containerPort: 8780}
        {{- end }}
        {{- if eq $role "remoting" }}
        - {name: remoting, containerPort: 9876}
        {{- end }}
        - {name: metrics, containerPort: 8790}
      startupProbe:
        httpGet: {path: /livez, port: metrics}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: metrics}
        timeoutSeconds: 5
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 5
      {{- end }}
      {{- if has $role (list "api" "remoting") }}
      lifecycle:
        preStop: {sleep: {seconds: 5}} # until nobody sends it anything more
      {{- end }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: secrets, mountPath: /run/secrets/outbox-bridge, readOnly: true}
        {{- if $takesTls }}
        - {name: tls, mountPath: /run/tls, readOnly: true}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    - name: secrets
      secret:
        secretName: {{ $secret.name }}
        defaultMode: 0440
        items: {{- toYaml $items | nindent 10 }}
    {{- if $takesTls }}
    - name: tls
      secret:
        secretName: {{ $root.Values.tls.secret }}
        defaultMode: 0440
    {{- end }}
{{- end }}
