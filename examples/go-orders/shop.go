// A shop whose orders are announced on Kafka, with Go's standard library: go run shop.go PORT
// Its database is a folder: a file for each order, named by the transaction id, made whole or not at all.
package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const group = "go-orders"

type object = map[string]any

type check struct {
	ID         string `json:"transaction_id"`
	Nonce      string `json:"nonce"`
	Resolution string `json:"resolution"`
}

var (
	bridge, folder = setting("BRIDGE_URL", "http://127.0.0.1:8780"), setting("ORDERS", "orders")
	key, _         = base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("OUTBOX_SECRET"), "whsec_"))
	client         = http.Client{Timeout: 10 * time.Second}
	isID           = regexp.MustCompile(`^[0-9a-z]{28}$`).MatchString
)

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// The local transaction. os.ErrExist if there is a file of this name: an order, or a bar.
func write(id string, text []byte) error {
	file, err := os.CreateTemp(folder, ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err = file.Write(text); err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = os.Link(file.Name(), filepath.Join(folder, id))
	}
	return err
}

func call(path string, body any) (answer check, err error) {
	text, _ := json.Marshal(body)
	response, err := client.Post(bridge+path, "application/json", bytes.NewReader(text))
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s", response.Status, text)
	} else if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	return answer, err
}

func place(_ http.Header, body []byte) (int, any) {
	var order struct {
		ID    string `json:"order_id"`
		Cents int    `json:"cents"`
	}
	if json.Unmarshal(body, &order) != nil {
		return 400, object{"error": "not an order"}
	}
	messages := []object{{"topic": "orders.created", "key": order.ID, "value": order}}
	prepared, err := call("/v1/transactions", object{"producer_group": group, "messages": messages})
	if err != nil {
		return 503, object{"error": err.Error()}
	}
	if err = write(prepared.ID, body); err != nil {
		return 409, object{"error": err.Error()} // such as: asked about before it was written
	}
	if _, err = call("/v1/transactions/"+prepared.ID+"/commit", object{}); err != nil {
		log.Print(err) // the bridge will ask what became of it
	}
	return 201, order
}

// Standard Webhooks: one of the signatures is ours, and the call is not an old one.
func isSigned(header http.Header, body []byte) bool {
	sent := header.Get("webhook-timestamp")
	at, err := strconv.ParseInt(sent, 10, 64)
	if age := time.Since(time.Unix(at, 0)); err != nil || age.Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", header.Get("webhook-id"), sent, body)
	ours := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, theirs := range strings.Fields(header.Get("webhook-signature")) {
		if hmac.Equal([]byte(theirs), []byte(ours)) {
			return true
		}
	}
	return false
}

func answer(header http.Header, body []byte) (int, any) {
	if !isSigned(header, body) {
		return 401, object{"error": "not signed by the bridge"}
	}
	var asked struct {
		Type, Challenge string
		Group           string `json:"producer_group"`
		Checks          []check
	}
	if json.Unmarshal(body, &asked) != nil || asked.Type != "transaction.check" || asked.Group != group {
		return 400, object{"error": "not a check of this group"}
	}
	resolutions := []check{}
	for _, each := range asked.Checks {
		if !isID(each.ID) {
			return 400, object{"error": "no transaction id"}
		}
		// nothing there: a bar is written first, so that a late order fails
		if err := write(each.ID, nil); err != nil && !errors.Is(err, os.ErrExist) {
			return 503, object{"error": err.Error()}
		}
		if text, err := os.ReadFile(filepath.Join(folder, each.ID)); err != nil {
			return 503, object{"error": err.Error()}
		} else if each.Resolution = "COMMIT"; len(text) == 0 {
			each.Resolution = "ROLLBACK"
		}
		resolutions = append(resolutions, each)
	}
	document := object{"resolutions": resolutions}
	if asked.Challenge != "" {
		document["challenge"] = asked.Challenge
	}
	return 200, document
}

func serve(path string, act func(http.Header, []byte) (int, any)) {
	http.HandleFunc(path, func(response http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, 9<<20))
		status, document := 413, any(object{"error": "too large"})
		if err == nil {
			status, document = act(request.Header, body)
		}
		response.Header().Set("Content-Type", "application/json")
		response.WriteHeader(status)
		json.NewEncoder(response).Encode(document)
	})
}

func main() {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		log.Fatal(err)
	}
	serve("/orders", place)
	serve("/outbox-checks", answer)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
