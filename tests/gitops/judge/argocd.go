package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const keyPrefix = "resource.customizations.health."

// What Argo CD shows of one object. Without a script it shows nothing and takes the object for healthy.
type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// Health scripts by GROUP_KIND, as in the ConfigMap argocd-cm.
type scripts map[string]string

func readScripts(path string) (scripts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var configMap struct{ Data map[string]string }
	if err := yaml.Unmarshal(text, &configMap); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	scripts := scripts{}
	for key, script := range configMap.Data {
		if name, found := strings.CutPrefix(key, keyPrefix); found {
			scripts[name] = script
		}
	}
	return scripts, nil
}

func (scripts scripts) health(object *unstructured.Unstructured) (health, error) {
	// Argo CD asks no script about an object that is being deleted.
	if object.GetDeletionTimestamp() != nil {
		return health{Status: "Progressing", Message: "Pending deletion"}, nil
	}
	script, found := scripts[object.GroupVersionKind().Group+"_"+object.GetKind()]
	if !found {
		return health{}, nil
	}
	// The libraries that a script of argocd-cm gets, and its one second.
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return health{}, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", toLua(state, object.Object))
	if err := state.DoString(script); err != nil {
		return health{}, err
	}
	answer, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return health{}, fmt.Errorf("expected a table, not %s", state.Get(-1).Type())
	}
	verdict := health{Status: text(answer, "status"), Message: text(answer, "message")}
	switch verdict.Status {
	case "Progressing", "Healthy", "Suspended", "Degraded":
		return verdict, nil
	}
	return health{}, fmt.Errorf("unknown health %q", verdict.Status)
}

func text(table *lua.LTable, key string) string {
	if value, isString := table.RawGetString(key).(lua.LString); isString {
		return string(value)
	}
	return ""
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case string:
		return lua.LString(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case []any:
		list := state.NewTable()
		for _, item := range value {
			list.Append(toLua(state, item))
		}
		return list
	case map[string]any:
		table := state.NewTable()
		for key, item := range value {
			table.RawSetString(key, toLua(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}
