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
	bridge  = setting("BRIDGE_URL", "http://127.0.0.1:8780")
	folder  = setting("ORDERS", "orders")
	key     = must(base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("OUTBOX_SECRET"), "whsec_")))
	client  = http.Client{Timeout: 10 * time.Second}
	isID    = regexp.MustCompile(`^[0-9a-z]{28}$`).MatchString
	refused = func(status int, why any) (int, any) { return status, object{"error": fmt.Sprint(why)} }
)

func setting(name, otherwise string) string {
	if value, isSet := os.LookupEnv(name); isSet {
		return value
	}
	return otherwise
}

func must[T any](value T, err error) T { // what fails is answered with 503
	if err != nil {
		panic(err)
	}
	return value
}

// The local transaction. False if there is a file of this name: an order, or a bar.
func write(id string, text []byte) bool {
	file := must(os.CreateTemp(folder, ".new-"))
	defer os.Remove(file.Name())
	defer file.Close()
	must(file.Write(text))
	must(0, file.Sync())
	err := os.Link(file.Name(), folder+"/"+id)
	if !errors.Is(err, os.ErrExist) {
		must(0, err)
	}
	return err == nil
}

func call(path string, body any) (answer check, err error) {
	response, err := client.Post(bridge+path, "application/json", bytes.NewReader(must(json.Marshal(body))))
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return answer, fmt.Errorf("%s: %s", path, response.Status)
	}
	return answer, json.NewDecoder(response.Body).Decode(&answer)
}

func place(_ http.Header, body []byte) (int, any) {
	var order struct {
		ID    string `json:"order_id"`
		Cents int    `json:"cents"`
	}
	if err := json.Unmarshal(body, &order); err != nil {
		return refused(400, err)
	}
	messages := []object{{"topic": "orders.created", "key": order.ID, "value": order}}
	prepared := must(call("/v1/transactions", object{"producer_group": group, "messages": messages}))
	if !write(prepared.ID, body) {
		return refused(409, "asked about before it was written")
	}
	if _, err := call("/v1/transactions/"+prepared.ID+"/commit", object{}); err != nil {
		log.Print(err) // the bridge will ask what became of it
	}
	return 201, order
}

// Standard Webhooks: one of the signatures is ours, and the call is not an old one.
func isSigned(header http.Header, body []byte) bool {
	at, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", header.Get("webhook-id"), at, body)
	ours := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, theirs := range strings.Fields(header.Get("webhook-signature")) {
		if hmac.Equal([]byte(theirs), []byte(ours)) {
			return true
		}
	}
	return false
}

func answer(header http.Header, body []byte) (int, any) {
	var asked struct {
		Type      string  `json:"type"`
		Group     string  `json:"producer_group"`
		Checks    []check `json:"checks"`
		Challenge string  `json:"challenge"`
	}
	if !isSigned(header, body) {
		return refused(401, "not signed by the bridge")
	} else if json.Unmarshal(body, &asked) != nil || asked.Type != "transaction.check" || asked.Group != group {
		return refused(400, "not a check of this group")
	}
	for at := range asked.Checks {
		each := &asked.Checks[at]
		if !isID(each.ID) {
			return refused(400, "no transaction id")
		}
		each.Resolution = "COMMIT" // nothing there: a bar is written first, so that a late order fails
		if write(each.ID, nil) || len(must(os.ReadFile(folder+"/"+each.ID))) == 0 {
			each.Resolution = "ROLLBACK"
		}
	}
	if asked.Challenge != "" {
		return 200, object{"resolutions": asked.Checks, "challenge": asked.Challenge}
	}
	return 200, object{"resolutions": asked.Checks}
}

func serve(path string, act func(http.Header, []byte) (int, any)) {
	http.HandleFunc(path, func(response http.ResponseWriter, request *http.Request) {
		status, document := refused(413, "too large")
		defer func() {
			if problem := recover(); problem != nil {
				status, document = refused(503, problem)
			}
			response.WriteHeader(status)
			json.NewEncoder(response).Encode(document)
		}()
		if body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, 9<<20)); err == nil {
			status, document = act(request.Header, body)
		}
	})
}

func main() {
	must(0, os.MkdirAll(folder, 0o700))
	serve("/orders", place)
	serve("/outbox-checks", answer)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
