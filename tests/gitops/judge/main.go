// Judges objects as GitOps tools do: one JSON object per line of standard input, one verdict per line of standard output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// The longest line: more than an object may have in etcd.
const maxLine = 4 << 20

type verdict struct {
	Kstatus string `json:"kstatus"`
	ArgoCD  health `json:"argocd"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: judge ARGOCD-CONFIGMAP.yaml < OBJECTS")
	}
	scripts, err := readScripts(os.Args[1])
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(lines.Bytes()); err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		verdict, err := judge(&object, scripts)
		if err != nil {
			return fmt.Errorf("judge %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		line, err := json.Marshal(verdict)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return lines.Err()
}

func judge(object *unstructured.Unstructured, scripts scripts) (verdict, error) {
	result, err := status.Compute(object)
	if err != nil {
		return verdict{}, fmt.Errorf("kstatus: %w", err)
	}
	health, err := scripts.health(object)
	if err != nil {
		return verdict{}, fmt.Errorf("health script: %w", err)
	}
	return verdict{Kstatus: result.Status.String(), ArgoCD: health}, nil
}
