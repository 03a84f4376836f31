// Writes notices to customers about bookings: net/http, JSON over HTTP.
//
// PORT chooses the port.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
)

type booking struct {
	OrderID   string `json:"order_id"`
	BookingID string `json:"booking_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

type notice struct {
	NoticeID string `json:"notice_id"`
	Text     string `json:"text"`
}

func write(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "use POST", http.StatusMethodNotAllowed)
		return
	}
	var b booking
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	text := fmt.Sprintf("Order %s: %d.%02d %s, booked as %s.",
		b.OrderID, b.Amount/100, b.Amount%100, b.Currency, b.BookingID)
	if err := json.NewEncoder(w).Encode(notice{NoticeID: "n-" + b.OrderID, Text: text}); err != nil {
		log.Print(err)
	}
}

func main() {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8081"
	}
	http.HandleFunc("/notices", write)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}
